package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// confirmEvery is the least time for which the daemon trusts its watches while nothing in them requires an
	// action.
	confirmEvery = 5 * time.Minute
	// countEvery is how often the cluster's PersistentVolumes are counted, to see whether it is still small.
	countEvery = time.Hour
	// maxGets is up to how many volumes are confirmed by one GET each. For more, a list is cheaper.
	maxGets = 30
	// takenMargin is how long before an inventory a snapshot must have been taken for the inventory to prove that it is
	// gone. The snapshots of a group all have the time of the first one, and the last is taken some seconds later.
	takenMargin = time.Minute
	// spread is the jitter of intervals and retries, so that nodes that start together do not stay in step.
	spread = 0.2
)

// confirmIfNeeded confirms decisions that are based on the watches, if mustConfirm requires it.
func (d *Daemon) confirmIfNeeded(ctx context.Context, f *observation) error {
	d.noteTrouble(f.at)
	if !d.listAt.IsZero() { // the API server must answer at least, until the list is due
		if err := d.sameCluster(ctx); err != nil {
			return err
		}
	}
	if !d.mustConfirm(*f) {
		return nil
	}
	if err := d.confirm(ctx, f); err != nil {
		d.confirmAt = time.Time{} // nothing counts as confirmed before the API server has answered
		return err
	}
	f.confirmed = true
	d.confirmAt = f.at.Add(wait.Jitter(confirmEvery, spread))
	d.orphans = orphanNames(f.result)
	d.forgetDeleted(f.view)
	return nil
}

// forgetDeleted drops the backoffs of PersistentVolumes that are gone from the API server.
func (d *Daemon) forgetDeleted(view eviction.View) {
	there := make(map[string]bool, len(view.PersistentVolumes))
	for i := range view.PersistentVolumes {
		there[string(view.PersistentVolumes[i].UID)] = true
	}
	d.releaseRetries.keepOnly(there)
	d.createRetries.keepOnly(there)
	d.stepRetries.keepOnly(there)
	d.usedReplicas.keepOnly(there)
	d.chargeRetries.keepOnly(there)
}

// confirm reads again from the API server what f is based on, and decides again. It fails if the API server is
// that of another cluster. See docs/decisions/011-confirming-without-lists.md for what each way proves.
func (d *Daemon) confirm(ctx context.Context, f *observation) error {
	if err := d.sameCluster(ctx); err != nil {
		return err
	}
	why := d.needsList(ctx, *f)
	if why == nil {
		if why = d.confirmCheaply(ctx, f); why == nil {
			return nil
		}
	}
	klog.FromContext(ctx).V(1).Info("The PersistentVolumes of this node are listed", "because", why.Error())
	from, known, _ := d.watches.volumesAt()
	items, to, err := d.listVolumes(ctx)
	if err != nil {
		return err
	}
	objects := make(map[string]*corev1.PersistentVolume, len(items))
	for i := range items {
		objects[items[i].Name] = &items[i]
	}
	d.decide(f, objects)
	if why := checkAgainstList(from, known, to, objects); why != nil {
		// The list does not repair the watch's cache, so the daemon goes on confirming by lists.
		klog.FromContext(ctx).V(1).Info("The watch of the PersistentVolumes differs from the list", "because", why.Error())
		d.listAt = f.at.Add(rand.N(confirmEvery))
		return nil
	}
	d.listAt = time.Time{}
	return nil
}

// checkAgainstList fails unless objects, a list of resourceVersion to, equals what the watch knew at from.
func checkAgainstList(from string, known []*corev1.PersistentVolume, to string, objects map[string]*corev1.PersistentVolume) error {
	order, err := resourceversion.CompareResourceVersion(from, to)
	if err != nil {
		return fmt.Errorf("compare the resourceVersions %q and %q: %w", from, to, err)
	}
	if order > 0 {
		return fmt.Errorf("resourceVersion %s of the list is older than %s of the watch, as if the API server had been restored from a backup", to, from)
	}
	if len(known) != len(objects) {
		return fmt.Errorf("the list has %s and the watch %d", volume.Pluralize(len(objects), "PersistentVolume", "PersistentVolumes"), len(known))
	}
	for _, followed := range known {
		if now := objects[followed.Name]; now == nil || !same(now, followed) {
			return fmt.Errorf("PersistentVolume %s differs from what the watch has shown", followed.Name)
		}
	}
	return nil
}

// same reports whether two objects are the same PersistentVolume at the same resourceVersion.
func same(a, b *corev1.PersistentVolume) bool {
	return a.Name == b.Name && a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
}

func (d *Daemon) sameCluster(ctx context.Context) error {
	cluster, err := d.api.Cluster(ctx)
	if err != nil {
		return err
	}
	if cluster != d.cluster {
		return fmt.Errorf("the cluster has changed: its UID was %s and is now %s; if that is intended, restart this daemon", d.cluster, cluster)
	}
	return nil
}

// needsList returns why only a list can confirm the actions of f; nil if none is needed.
func (d *Daemon) needsList(ctx context.Context, f observation) error {
	if !d.listAt.IsZero() {
		return errors.New("a watch failed, or differed from a list")
	}
	if len(d.due(f)) > 0 {
		return errors.New("replicas are to be evicted")
	}
	for i := range f.result.Evictions {
		// The PersistentVolume of a replica or an orphan cannot be found by the volume's name.
		if e := &f.result.Evictions[i]; e.Volume.Kind == volume.Dataset || e.Reason == eviction.ReasonOrphan {
			return errors.New("a replica or an orphan is to be evicted")
		}
	}
	if len(f.result.Evictions) > maxGets {
		return fmt.Errorf("%d volumes are to be evicted", len(f.result.Evictions))
	}
	if d.small(ctx, f.at) {
		return errors.New("the cluster has few PersistentVolumes")
	}
	return nil
}

// small reports whether the cluster has so few PersistentVolumes that a list costs no more than catching up the
// watch, and is faster.
func (d *Daemon) small(ctx context.Context, now time.Time) bool {
	if d.cfg.ListUpTo <= 0 {
		return false
	}
	if d.countAt.IsZero() || !now.Before(d.countAt) {
		count, err := d.api.VolumeCount(ctx)
		if err != nil {
			return false // a small cluster can afford the other way, a large one cannot afford lists
		}
		d.volumeCount, d.countAt = count, now.Add(wait.Jitter(countEvery, spread))
	}
	return d.volumeCount <= int64(d.cfg.ListUpTo)
}

// confirmCheaply catches up from what the watch knows to a resourceVersion that is read now, decides again, and
// then gets the PersistentVolumes of the very volumes to be evicted. It fails if they differ from the result of
// catching up.
func (d *Daemon) confirmCheaply(ctx context.Context, f *observation) error {
	// CatchUp replays events from a resourceVersion at or before the objects' own, so it skips none, and
	// ends at a resourceVersion read now, so the result is current.
	from, known, synced := d.watches.volumesAt()
	if !synced {
		return errors.New("the watch has read nothing yet")
	}
	to, err := d.api.Revision(ctx)
	if err != nil {
		return err
	}
	objects := byName(known)
	if err := d.api.CatchUp(ctx, d.cfg.Node, from, to, objects); err != nil {
		return err
	}
	if d.watches.trouble.Load() { // noteTrouble takes care of the next rounds
		return errors.New("a watch failed meanwhile")
	}
	d.decide(f, objects)
	if why := d.needsList(ctx, *f); why != nil {
		return why // the caught-up objects lead to other decisions
	}
	for i := range f.result.Evictions {
		if err := d.checkAgainstServer(ctx, string(f.result.Evictions[i].Volume.Name), objects); err != nil {
			return err
		}
	}
	return nil
}

// checkAgainstServer fails unless the API server's PersistentVolume of this name is exactly the caught-up one, or both
// have none. The PersistentVolume of a volume that is released is checked right before (releaseOne).
func (d *Daemon) checkAgainstServer(ctx context.Context, name string, objects map[string]*corev1.PersistentVolume) error {
	now, err := d.api.Volume(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	followed := objects[name]
	there := err == nil
	if there != (followed != nil) || there && !same(now, followed) {
		return fmt.Errorf("PersistentVolume %s differs from what the watch has shown", name)
	}
	return nil
}

// decide makes the round's decisions from these objects.
func (d *Daemon) decide(f *observation, objects map[string]*corev1.PersistentVolume) {
	f.objects = objects
	f.unreadable = map[string]error{}
	f.view = eviction.View{
		Now: f.at, Cluster: d.cluster, Pools: f.inventory.Pools,
		Removing:       d.removing(f.at, f.inventory.Volumes),
		KeptElsewhere:  d.keptElsewhere.all(),
		KeptUnchecked:  d.keptUnchecked(f.inventory.Volumes),
		WentBack:       d.watches.revisions.wentBack(),
		OrphansEvicted: d.history.orphansSince(f.at.Add(-d.cfg.Policy.OrphanWindow())),
	}
	f.view.Volumes = d.marked(f.at, f.inventory.Volumes, f.view.Removing)
	f.view.Users, f.view.PodsKnown = d.watches.users()
	f.view.ReplicasInUse = d.replicasInUse(objects, f.at)
	for _, o := range objects {
		c, err := persistentvolume.Parse(o)
		if err != nil {
			f.unreadable[o.Name] = err
			f.view.Unreadable = append(f.view.Unreadable, persistentvolume.NamesOf(o)...)
			continue
		}
		f.view.PersistentVolumes = append(f.view.PersistentVolumes, c)
	}
	f.view.Lost = d.lost(f.view, objects)
	d.futureEvictable.ReplaceEvictable(f.at, f.view.PersistentVolumes)
	f.view.StartsUntil = d.starts.Until(f.view, d.watches.starting())
	f.verdicts = eviction.Judge(f.view)
	f.result = eviction.Plan(f.view, d.cfg.Policy)
	f.moves = eviction.Steps(f.view, f.result)
	d.noteUnlabelled(*f)
}

// lost returns the volumes of usable PersistentVolumes that the node had before the inventory was taken and
// that are gone, for example with a disk that was given up. A volume that was created since the inventory is
// not lost: its last use lies between then and now. A last use in the future comes from a clock that was ahead,
// and proves only that the volume was there. See eviction.View.
//
// A replica without a record on the node counts as having been there if its PersistentVolume calls it complete.
// That is so after the API server was restored from a backup that is older than the replica's eviction. A snapshot
// counts as having been there if its PersistentVolume says that it was taken: it is never mounted, so the node has no
// record of it. The source of a copy is lost, too, if neither it nor a PersistentVolume that wants it exists.
func (d *Daemon) lost(view eviction.View, objects map[string]*corev1.PersistentVolume) map[eviction.Key]eviction.Loss {
	there := make(map[eviction.Key]bool, len(view.Volumes))
	for i := range view.Volumes {
		there[eviction.KeyOf(&view.Volumes[i])] = true
	}
	out := map[eviction.Key]eviction.Loss{}
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		key := eviction.KeyOfPersistentVolume(c)
		if !c.Usable() || there[key] {
			continue
		}
		if c.Kind == volume.Snapshot {
			if takenBefore(objects[c.PV], view.Now) {
				out[key] = eviction.LossProved
			}
			continue
		}
		lastUsed, had, err := d.engine.HadVolume(c.Group, c.Volume)
		switch {
		case err != nil:
			out[key] = eviction.LossUnproved
		case had && (lastUsed.Before(view.Now) || lastUsed.After(d.cfg.Now())), !had && c.Kind == volume.Dataset && c.Replica.Complete:
			out[key] = eviction.LossProved
		}
	}
	for _, source := range eviction.LostSources(view) {
		out[source] = eviction.LossProved
	}
	return out
}

// takenBefore reports whether a snapshot was taken so long before an inventory that the inventory must show it. A
// snapshot that is not taken yet may be taken again under its name. Both times are of this node's clock.
func takenBefore(snapshot *corev1.PersistentVolume, inventory time.Time) bool {
	at, taken := persistentvolume.TakenAt(snapshot)
	return taken && at.Add(takenMargin).Before(inventory)
}

func byName(objects []*corev1.PersistentVolume) map[string]*corev1.PersistentVolume {
	out := make(map[string]*corev1.PersistentVolume, len(objects))
	for _, o := range objects {
		out[o.Name] = o
	}
	return out
}

// mustConfirm reports whether the API server has to confirm what the watches show: before any irreversible
// action, before eviction is reported as blocked or a request is answered, periodically, and some time after a watch
// had trouble.
func (d *Daemon) mustConfirm(f observation) bool {
	if len(f.result.Evictions) > 0 || len(d.due(f)) > 0 || f.result.Blocked != "" || len(d.requested()) > 0 {
		return true
	}
	if !f.at.Before(d.confirmAt) || !d.listAt.IsZero() && !f.at.Before(d.listAt) {
		return true
	}
	for _, v := range f.verdicts {
		if v.Action == eviction.ActionRelease && !d.releaseRetries.waits(string(v.PersistentVolume.UID), f.at) {
			return true
		}
	}
	for name := range orphanNames(f.result) {
		if !d.orphans[name] {
			return true // the watch may not have shown the PersistentVolume of a new volume yet
		}
	}
	return false
}

// noteTrouble schedules a list of the PersistentVolumes after a watch had trouble: before any action, or else
// at a random time within confirmEvery, because all nodes have trouble when an API server restarts.
func (d *Daemon) noteTrouble(now time.Time) {
	if d.watches.trouble.Swap(false) && d.listAt.IsZero() {
		d.listAt = now.Add(rand.N(confirmEvery))
	}
}
