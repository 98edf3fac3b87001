package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// uuidSet is a set of volumes that may be used from several goroutines.
type uuidSet struct {
	mu  sync.Mutex
	set map[string]bool
}

func (u *uuidSet) add(uuid string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.set == nil {
		u.set = map[string]bool{}
	}
	u.set[uuid] = true
}

func (u *uuidSet) has(uuid string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.set[uuid]
}

func (u *uuidSet) drop(uuid string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.set, uuid)
}

func (u *uuidSet) keep(there map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for uuid := range u.set {
		if !there[uuid] {
			delete(u.set, uuid)
		}
	}
}

// hold takes back what waits to be removed: a round that failed proves nothing.
func (d *Daemon) hold() {
	d.holdRemovals()
	d.copier.set(nil)
	d.filler.set(nil)
	d.trimmer.set(nil)
}

// holdRemovals takes back the removals that nobody is at yet.
func (d *Daemon) holdRemovals() {
	for _, q := range d.removalQueues() {
		q.set(nil)
	}
}

// removalQueues returns the queues of removals; enqueue says what each is for.
func (d *Daemon) removalQueues() []*serialQueue[[]job] {
	return []*serialQueue[[]job]{d.quick, d.slow, d.files}
}

// enqueue puts the removals of a round into three queues: slow for volumes that are wiped, files for
// directory volumes, and quick for the rest, which must not wait for the others. Wiping may take
// hours, and so may the millions of files of a directory volume.
func (d *Daemon) enqueue(ctx context.Context, f observation) {
	var quick []job
	var slow, files [][]job
	for _, j := range d.jobs(ctx, f) {
		switch {
		case j.directory():
			files = append(files, []job{j})
		case j.volume.Wipe == volume.WipeNone || j.volume.Wipe == "":
			quick = append(quick, j)
		default:
			slow = append(slow, []job{j})
		}
	}
	d.quick.set(batches(quick, d.proven.has))
	d.slow.set(slow)
	d.files.set(files)
}

// mostTogether bounds how many volumes are removed together: while LVM is at it, nobody
// else can use LVM on this node.
const mostTogether = 16

// batches puts jobs together that follow one another in one group. An orphan goes alone,
// because it is given up first. So does the first volume of a group, by its UUID, in which
// no removal has succeeded yet, or the last one has failed: what keeps that one from ending,
// as a disk that refuses to discard, would keep all of a batch, and what is doomed does not
// come back.
func batches(jobs []job, proven func(groupUUID string) bool) (out [][]job) {
	begun, open := map[string]bool{}, false // whether the last batch may be joined
	for _, j := range jobs {
		g, n := j.volume.GroupUUID, len(out)
		alone := j.orphan() || !proven(g) && !begun[g]
		begun[g] = true
		if open && !alone && out[n-1][0].volume.GroupUUID == g && len(out[n-1]) < mostTogether {
			out[n-1] = append(out[n-1], j)
			continue
		}
		out = append(out, []job{j})
		open = !alone
	}
	return out
}

// atWork returns the jobs that the removal queues are working on.
func (d *Daemon) atWork() (out []job) {
	for _, q := range d.removalQueues() {
		now, _ := q.at()
		out = append(out, now...)
	}
	return out
}

// jobs are a round's removals that nobody is at yet: the evictions, and what an
// earlier process has left doomed.
func (d *Daemon) jobs(ctx context.Context, f observation) []job {
	busy := d.announceCommitted(ctx, f)
	var out []job
	add := func(v inventory.Volume, e *eviction.Eviction) {
		if d.removals.waits(v.UUID, f.at) || busy[v.UUID] || d.removed.has(v.UUID) {
			return
		}
		j := job{volume: v, eviction: e, told: &sync.Once{}}
		if ref, known := d.releasedClaims.of(v.UUID); known {
			j.claimant = &ref
		}
		if begun, known := d.inFlight.of(v.UUID); known {
			j.told = begun.told // one volume is told of once, however often it is tried
			if e == nil || begun.orphan() {
				j.eviction, j.claimant = begun.eviction, begun.claimant
			}
		}
		out = append(out, j)
	}
	for _, v := range f.inventory.Volumes { // first: what is committed counts as room to come
		if v.State == volume.Doomed && v.Cluster == d.cluster {
			add(v, nil)
		}
	}
	mayGo := d.orphanMayGo()
	for i := range f.result.Evictions {
		e := &f.result.Evictions[i]
		if !f.confirmed || e.Reason == eviction.ReasonOrphan && !mayGo {
			continue
		}
		add(e.Volume, e)
		mayGo = mayGo && e.Reason != eviction.ReasonOrphan
	}
	return out
}

// orphanMayGo reports whether an orphan may be given up now: one at a time, and only
// when the API has on record that the last one was. So a restart gives no more of them
// than their share, and a crash at most the one that it cut short.
func (d *Daemon) orphanMayGo() bool {
	if slices.ContainsFunc(d.atWork(), job.orphan) {
		return false
	}
	return d.history.published()
}

// announceCommitted returns the UUIDs of the volumes that the removal queues are working on. It also
// announces evictions that are committed while the volume is still being wiped, which may take hours.
func (d *Daemon) announceCommitted(ctx context.Context, f observation) map[string]bool {
	busy := map[string]bool{}
	for _, j := range d.atWork() {
		busy[j.volume.UUID] = true
		for _, v := range f.inventory.Volumes {
			if v.UUID == j.volume.UUID && v.State == volume.Doomed && j.eviction != nil {
				j.told.Do(func() { d.announceEvicted(ctx, j) })
			}
		}
	}
	return busy
}

// announceGone tells of evictions whose removal failed, as it seemed, and whose volumes
// are gone all the same.
func (d *Daemon) announceGone(ctx context.Context, in inventory.Inventory) {
	for _, j := range d.inFlight.gone(in) {
		j.told.Do(func() { d.announceEvicted(ctx, j) })
	}
}

// remove removes the volumes of several jobs of one group together. The removal queues call it.
func (d *Daemon) remove(ctx context.Context, jobs []job) {
	errs := d.removeVolumes(ctx, jobs)
	if ctx.Err() != nil {
		return // told to end; the next process finishes it
	}
	defer d.kick()
	for i, j := range jobs {
		d.removedOrNot(ctx, j, errs[i])
	}
}

// removedOrNot notes and tells how a job has ended.
func (d *Daemon) removedOrNot(ctx context.Context, j job, err error) {
	id := j.volume.UUID
	if err == nil {
		if !j.directory() { // LVM has no part in it
			d.proven.add(j.volume.GroupUUID)
		}
		d.removals.clear(id)
		d.removed.add(id)
		d.inFlight.drop(id)
		d.dedupe.over("removal " + id)
		j.told.Do(func() {
			if j.eviction == nil {
				d.announceFinished(ctx, j)
				return
			}
			d.announceEvicted(ctx, j)
		})
		return
	}
	if !j.directory() && !errors.Is(err, node.ErrInUse) {
		d.proven.drop(j.volume.GroupUUID)
	}
	d.inFlight.note(j)
	now := d.cfg.Now()
	b := d.removals.add(id, now, brief(err))
	// What else waits was decided when this was expected to go.
	d.holdRemovals()
	d.out.Metrics.removalFailed()
	if !d.dedupe.fresh("removal "+id, brief(err), now) {
		return
	}
	klog.FromContext(ctx).Error(err, "A volume could not be removed; it is tried again", "volume", eviction.KeyOf(&j.volume).String(), "in", b.delay)
	d.events.onNode(warning, "VolumeNotEvicted", fmt.Sprintf("%v; it is tried again", err))
}

// removeVolumes removes the volumes of jobs, and returns what went wrong with each.
func (d *Daemon) removeVolumes(ctx context.Context, jobs []job) []error {
	errs := make([]error, len(jobs))
	var refs []node.Ref
	var of []int // their jobs
	for i, j := range jobs {
		ref := refOf(j.volume)
		if j.volume.State == volume.Doomed {
			ref.Name = j.volume.Name // by now another volume may have the name that it bore
		} else if errs[i] = d.mayRemove(ctx, ref, j); errs[i] != nil {
			continue
		}
		refs, of = append(refs, ref), append(of, i)
	}
	if len(refs) == 1 {
		errs[of[0]] = d.engine.Remove(ctx, refs[0])
		return errs
	}
	for i, err := range d.engine.RemoveAll(ctx, refs) {
		errs[of[i]] = err
	}
	return errs
}

// mayRemove fails if a volume must stay by what is in no list of PersistentVolumes of this node.
func (d *Daemon) mayRemove(ctx context.Context, ref node.Ref, j job) error {
	switch {
	case j.orphan():
		return d.giveUp(ctx, ref, j)
	case j.volume.Kind == volume.Dataset: // whose PersistentVolumes have other names
		return nil
	}
	return d.keptElsewhere(ctx, j.volume)
}

// keptElsewhere fails if the PersistentVolume of a volume's name wants it or says Retain, and its label
// says that the volume is on another node, or on none: the node may have got another name, or the
// volume another node.
func (d *Daemon) keptElsewhere(ctx context.Context, v inventory.Volume) error {
	object, err := d.api.Volume(ctx, string(v.Name))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("evict volume: %w", err)
	}
	if object.Labels[pv.LabelNode] == pv.NodeLabelValue(d.cfg.Node) {
		return nil // it was judged
	}
	c, err := persistentvolume.Parse(object)
	if err == nil && c.Leaving() && c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	return fmt.Errorf("evict volume: %w", d.named(v, object))
}

// giveUp makes an orphan unreferenced: the engine removes only what positively is, and
// here it is --evict-orphans that says so. From then on it counts as evicted, whatever
// becomes of its removal.
func (d *Daemon) giveUp(ctx context.Context, ref node.Ref, j job) error {
	if err := d.unnamed(ctx, j.volume); err != nil {
		return fmt.Errorf("evict orphan: %w", err)
	}
	if why := d.watches.revisions.wentBack(); why != "" {
		return fmt.Errorf("evict orphan: the API server has gone back in time (%s), and may lack its PersistentVolume", why)
	}
	disposal := volume.Disposal{Reclaim: j.volume.Reclaim, Wipe: j.volume.Wipe}
	if err := d.engine.Release(ctx, ref, volume.Unreferenced, disposal); err != nil {
		return err
	}
	d.history.add(d.cfg.Now(), *j.eviction)
	return nil
}

// unnamed fails if a PersistentVolume names a volume, also one that is in no round's list because
// it says of no node, or of another, that it is there: it may have lost its label, or the node its
// name. Of those of other nodes only one of the volume's own name is found: replicas of a dataset
// have one name on all of their nodes.
func (d *Daemon) unnamed(ctx context.Context, v inventory.Volume) error {
	object, err := d.api.Volume(ctx, string(v.Name))
	switch {
	case err == nil:
		return d.named(v, object)
	case !apierrors.IsNotFound(err):
		return err
	}
	here, _, err := d.listVolumes(ctx)
	if err != nil {
		return err
	}
	names := func(object *corev1.PersistentVolume) bool {
		return slices.Contains(persistentvolume.NamesOf(object), string(v.Name))
	}
	for i := range here {
		if names(&here[i]) {
			return d.named(v, &here[i])
		}
	}
	nowhere, err := d.api.VolumesOfNoNode(ctx, names)
	if err != nil {
		return err
	}
	if len(nowhere) > 0 {
		return d.named(v, &nowhere[0])
	}
	return nil
}

func (d *Daemon) named(v inventory.Volume, by *corev1.PersistentVolume) error {
	label, here := by.Labels[pv.LabelNode], pv.NodeLabelValue(d.cfg.Node)
	if label == here {
		return fmt.Errorf("PersistentVolume %s names volume %s: delete its claim, and the volume is released by itself", by.Name, v.Name)
	}
	return fmt.Errorf("PersistentVolume %s names volume %s, and its label %s is %q and not %q: put the label right, or delete the PersistentVolume if nobody needs it",
		by.Name, v.Name, pv.LabelNode, label, here)
}

// brief is an error in the words of a status: what is known to pass needs no
// detail.
func brief(err error) string {
	if errors.Is(err, node.ErrInUse) {
		return "its device is in use"
	}
	return clip(err.Error(), 200)
}

// clip bounds what somebody else's text takes of a message.
func clip(s string, most int) string { return volume.Clip(s, most, "…") }

func (d *Daemon) announceEvicted(ctx context.Context, j job) {
	e := *j.eviction
	d.history.add(d.cfg.Now(), e)
	d.out.Metrics.evicted(e.Reason)
	klog.FromContext(ctx).Info("Volume evicted", "volume", eviction.KeyOf(&e.Volume).String(), "reason", e.Reason, "why", e.Message)
	message := fmt.Sprintf("volume %s was evicted (%s): %s", eviction.KeyOf(&e.Volume), e.Reason, e.Message)
	d.events.onNode(normal, "VolumeEvicted", message)
	d.events.onClaim(ctx, j.claimant, normal, "VolumeEvicted", message)
	d.events.onManager(e, normal, "ReplicaEvicted", message)
}

func (d *Daemon) announceFinished(ctx context.Context, j job) {
	ref := refOf(j.volume)
	klog.FromContext(ctx).Info("Removal finished that was begun earlier", "volume", ref.String())
	d.events.onNode(normal, "RemovalFinished", fmt.Sprintf("volume %s is gone: its removal had been begun earlier", ref))
}
