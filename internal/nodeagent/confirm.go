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
	// confirmEvery is how long the daemon believes its watches at least while they show
	// nothing that it would act on.
	confirmEvery = 5 * time.Minute
	// countEvery is how often to see whether the cluster is still a small one.
	countEvery = time.Hour
	// mostGets is up to how many volumes are asked for one by one. For more a list is
	// cheaper.
	mostGets = 30
	// spread is by how much intervals and retries are longer at random: what begins
	// together on all nodes must not stay together.
	spread = 0.2
)

// confirmIfNeeded confirms what was decided on the strength of the watches, where mustConfirm says so.
func (d *Daemon) confirmIfNeeded(ctx context.Context, f *observation) error {
	if err := d.noteTrouble(ctx, f.at); err != nil {
		return err
	}
	if !d.mustConfirm(*f) {
		return nil
	}
	if err := d.confirm(ctx, f); err != nil {
		d.confirmAt = time.Time{} // nothing counts before it has answered
		return err
	}
	f.confirmed = true
	d.confirmAt = f.at.Add(wait.Jitter(confirmEvery, spread))
	d.orphans = orphanNames(f.result)
	d.forgetDeleted(f.view)
	return nil
}

// forgetDeleted drops the backoffs of PersistentVolumes that the API server has no more.
func (d *Daemon) forgetDeleted(view eviction.View) {
	there := make(map[string]bool, len(view.PersistentVolumes))
	for i := range view.PersistentVolumes {
		there[string(view.PersistentVolumes[i].UID)] = true
	}
	d.releases.keep(there)
	d.copies.keep(there)
	d.moves.keep(there)
	d.charges.keep(there)
}

// confirm reads again from the API server what f is based on, and decides again. It fails if
// the server is that of another cluster. See docs/decisions/011-confirming-without-lists.md for
// what each way proves.
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
	if why := asListed(from, known, to, objects); why != nil {
		// A list puts nothing right in what the watch knows: lists go on confirming.
		klog.FromContext(ctx).V(1).Info("The watch of the PersistentVolumes has not shown what the list has", "because", why.Error())
		d.listAt = f.at.Add(rand.N(confirmEvery))
		return nil
	}
	d.listAt = time.Time{}
	return nil
}

// asListed fails unless objects, a list of resourceVersion to, are just what the watch knew
// at from.
func asListed(from string, known []*corev1.PersistentVolume, to string, objects map[string]*corev1.PersistentVolume) error {
	order, err := resourceversion.CompareResourceVersion(from, to)
	if err != nil {
		return fmt.Errorf("compare the resourceVersions %q and %q: %w", from, to, err)
	}
	if order > 0 {
		return fmt.Errorf("resourceVersion %s of the list is older than %s of the watch, as if the API server had been restored from a backup", to, from)
	}
	if len(known) != len(objects) {
		return fmt.Errorf("the list has %s and the watch %d", volume.Counted(len(objects), "PersistentVolume", "PersistentVolumes"), len(known))
	}
	for _, followed := range known {
		if now := objects[followed.Name]; now == nil || !same(now, followed) {
			return fmt.Errorf("PersistentVolume %s is not what the watch has shown", followed.Name)
		}
	}
	return nil
}

// same reports whether one PersistentVolume is the other and has not been written to since.
func same(a, b *corev1.PersistentVolume) bool {
	return a.Name == b.Name && a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
}

func (d *Daemon) sameCluster(ctx context.Context) error {
	cluster, err := d.api.Cluster(ctx)
	if err != nil {
		return err
	}
	if cluster != d.cluster {
		return fmt.Errorf("the cluster is another: its UID was %s and is %s; if that is meant to be so, start this daemon again", d.cluster, cluster)
	}
	return nil
}

// needsList says why only a list confirms what f would do, or is nil.
func (d *Daemon) needsList(ctx context.Context, f observation) error {
	if !d.listAt.IsZero() {
		return errors.New("a watch had trouble, or had not shown what a list had")
	}
	if len(d.due(f)) > 0 {
		return errors.New("replicas are to go")
	}
	for i := range f.result.Evictions {
		// The PersistentVolumes of replicas and of orphans cannot be told by their names.
		if e := &f.result.Evictions[i]; e.Volume.Kind == volume.Dataset || e.Reason == eviction.ReasonOrphan {
			return errors.New("a replica or an orphan is to go")
		}
	}
	if len(f.result.Evictions) > mostGets {
		return fmt.Errorf("%d volumes are to go", len(f.result.Evictions))
	}
	if d.small(ctx, f.at) {
		return errors.New("the cluster has few PersistentVolumes")
	}
	return nil
}

// small reports whether the cluster has so few PersistentVolumes that a list costs no more
// than a watch, and answers sooner.
func (d *Daemon) small(ctx context.Context, now time.Time) bool {
	if d.cfg.ListUpTo <= 0 {
		return false
	}
	if d.countAt.IsZero() || !now.Before(d.countAt) {
		count, err := d.api.VolumeCount(ctx)
		if err != nil {
			return false // a small cluster can bear the other way, a large one not this
		}
		d.volumeCount, d.countAt = count, now.Add(wait.Jitter(countEvery, spread))
	}
	return d.volumeCount <= int64(d.cfg.ListUpTo)
}

// confirmCheaply brings what the watch knows to a resourceVersion that is read now, decides
// again, and then asks for the very volumes that are to go. Where they are not what was
// followed, it fails.
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
	if d.watches.trouble.Load() { // noteTrouble sees to the next rounds
		return errors.New("a watch had trouble meanwhile")
	}
	d.decide(f, objects)
	if why := d.needsList(ctx, *f); why != nil {
		return why // what was followed leads to something else
	}
	for i := range f.result.Evictions {
		if err := d.asFollowed(ctx, string(f.result.Evictions[i].Volume.Name), objects); err != nil {
			return err
		}
	}
	return nil
}

// asFollowed fails unless the API server has the PersistentVolume that a volume is named
// after just as it was followed, or has none and none was. That of a volume that is
// released is looked at right before (releaseOne).
func (d *Daemon) asFollowed(ctx context.Context, name string, objects map[string]*corev1.PersistentVolume) error {
	now, err := d.api.Volume(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	followed := objects[name]
	there := err == nil
	if there != (followed != nil) || there && !same(now, followed) {
		return fmt.Errorf("PersistentVolume %s is not what the watch has shown", name)
	}
	return nil
}

// decide decides on the strength of objects.
func (d *Daemon) decide(f *observation, objects map[string]*corev1.PersistentVolume) {
	f.objects = objects
	f.unreadable = map[string]error{}
	f.view = eviction.View{
		Now: f.at, Cluster: d.cluster, Pools: f.inventory.Pools,
		Removing:       d.removing(f.at, f.inventory.Volumes),
		KeptElsewhere:  d.elsewhere.all(),
		WentBack:       d.watches.revisions.wentBack(),
		OrphansEvicted: d.history.orphansSince(f.at.Add(-d.cfg.Policy.OrphanWindow())),
	}
	f.view.Volumes = d.marked(f.at, f.inventory.Volumes, f.view.Removing)
	f.view.Users, f.view.PodsKnown = d.watches.users()
	for _, o := range objects {
		c, err := persistentvolume.Parse(o)
		if err != nil {
			f.unreadable[o.Name] = err
			f.view.Unreadable = append(f.view.Unreadable, persistentvolume.NamesOf(o)...)
			continue
		}
		f.view.PersistentVolumes = append(f.view.PersistentVolumes, c)
	}
	f.view.Lost = d.lost(f.view)
	d.futureGoing.ReplaceEvictable(f.at, f.view.PersistentVolumes)
	f.view.StartsUntil = d.starts.Until(f.view, d.watches.starting())
	f.verdicts = eviction.Judge(f.view)
	f.result = eviction.Plan(f.view, d.cfg.Policy)
	f.moves = eviction.Steps(f.view, f.result)
}

// lost returns the volumes of PersistentVolumes that pods can use which the node had before it was
// looked at, and has no more, such as those on a disk that was given up. A volume that was made
// since then is not lost: it was last used between the look and now. A last use in the future is of a clock
// that was ahead, and proves nothing but that the volume was there. See eviction.View.
//
// A replica of which nothing is on record was there if its PersistentVolume says that it is complete, as
// that of an API server does that was restored from a backup which is older than its eviction.
func (d *Daemon) lost(view eviction.View) map[eviction.Key]bool {
	there := make(map[eviction.Key]bool, len(view.Volumes))
	for i := range view.Volumes {
		there[eviction.KeyOf(&view.Volumes[i])] = true
	}
	out := map[eviction.Key]bool{}
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		if c.Kind == volume.Snapshot || !c.Usable() { // a snapshot may be taken again by the same name
			continue
		}
		key := eviction.KeyOfPersistentVolume(c)
		if there[key] {
			continue
		}
		lastUsed, had, err := d.engine.Served(c.Group, c.Volume)
		switch {
		case err != nil:
			out[key] = false
		case had && (lastUsed.Before(view.Now) || lastUsed.After(d.cfg.Now())), !had && c.Kind == volume.Dataset && c.Replica.Complete:
			out[key] = true
		}
	}
	return out
}

func byName(objects []*corev1.PersistentVolume) map[string]*corev1.PersistentVolume {
	out := make(map[string]*corev1.PersistentVolume, len(objects))
	for _, o := range objects {
		out[o.Name] = o
	}
	return out
}

// mustConfirm reports whether what the watches show has to be confirmed by the API
// server itself: before anything is done or claimed that cannot be taken back, and now
// and then; in any case some time after a watch had trouble.
func (d *Daemon) mustConfirm(f observation) bool {
	if len(f.result.Evictions) > 0 || len(d.due(f)) > 0 || f.result.Blocked != "" || len(d.requested()) > 0 {
		return true
	}
	if !f.at.Before(d.confirmAt) || !d.listAt.IsZero() && !f.at.Before(d.listAt) {
		return true
	}
	for _, v := range f.verdicts {
		if v.Action == eviction.ActionRelease && !d.releases.waits(string(v.PersistentVolume.UID), f.at) {
			return true
		}
	}
	for name := range orphanNames(f.result) {
		if !d.orphans[name] {
			return true // a new volume may have overtaken its PersistentVolume
		}
	}
	return false
}

// noteTrouble sees to it that the PersistentVolumes are listed after a watch had trouble:
// before anything is done, or else at some time within confirmEvery, as all nodes have
// trouble when an API server starts anew. Until then it is enough that it answers.
func (d *Daemon) noteTrouble(ctx context.Context, now time.Time) error {
	if d.watches.trouble.Swap(false) && d.listAt.IsZero() {
		d.listAt = now.Add(rand.N(confirmEvery))
	}
	if d.listAt.IsZero() {
		return nil
	}
	return d.sameCluster(ctx)
}
