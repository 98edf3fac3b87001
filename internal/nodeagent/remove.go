package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// uuidSet is a set of UUIDs, or of other identities. It may be used from several goroutines.
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

func (u *uuidSet) keepOnly(there map[string]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for uuid := range u.set {
		if !there[uuid] {
			delete(u.set, uuid)
		}
	}
}

// clearQueues clears the queues of removals, copies and trims, because a failed round proves nothing.
func (d *Daemon) clearQueues() {
	d.clearRemovals()
	d.createQueue.set(nil)
	d.slowCreateQueue.set(nil)
	d.trimmer.set(nil)
}

// clearRemovals clears the removals that are not being worked on yet.
func (d *Daemon) clearRemovals() {
	for _, q := range d.removalQueues() {
		q.set(nil)
	}
}

// removalQueues returns the queues of removals; see enqueue.
func (d *Daemon) removalQueues() []*serialQueue[[]job] {
	return []*serialQueue[[]job]{d.removals, d.wipes, d.directoryRemovals}
}

// enqueue puts the removals of a round into three queues: wipes for volumes that are wiped,
// directoryRemovals for directory volumes, and removals for the rest, which must not wait for the others.
// Wiping may take hours, and so may the millions of files of a directory volume.
func (d *Daemon) enqueue(ctx context.Context, f observation) {
	var removals []job
	var wipes, directoryRemovals [][]job
	for _, j := range d.jobs(ctx, f) {
		switch {
		case j.directory():
			directoryRemovals = append(directoryRemovals, []job{j})
		case j.volume.Wipe == volume.WipeNone || j.volume.Wipe == "":
			removals = append(removals, j)
		default:
			wipes = append(wipes, []job{j})
		}
	}
	d.removals.set(batches(removals, d.proven.has))
	d.wipes.set(wipes)
	d.directoryRemovals.set(directoryRemovals)
}

// maxBatch bounds how many volumes are removed together, because LVM is locked on this node meanwhile.
const maxBatch = 16

// batches groups consecutive jobs of one volume group. These go alone: an orphan, because it is given up first;
// and the first volume of a group, by its UUID, in which no removal has succeeded yet or the last one failed. A
// cause that blocks this removal, such as a disk that rejects discards, would block a whole batch, and doomed
// volumes cannot be restored. Volumes that are already doomed are not batched with others, about which the API
// server is asked first and may not answer.
func batches(jobs []job, proven func(groupUUID string) bool) (out [][]job) {
	begun, open := map[string]bool{}, false // whether the last batch accepts more jobs
	for _, j := range jobs {
		g, n := j.volume.GroupUUID, len(out)
		alone := j.orphan() || !proven(g) && !begun[g]
		begun[g] = true
		if open && !alone && sameBatch(out[n-1][0], j) && len(out[n-1]) < maxBatch {
			out[n-1] = append(out[n-1], j)
			continue
		}
		out = append(out, []job{j})
		open = !alone
	}
	return out
}

// sameBatch reports whether two jobs are of one group, and both or neither are doomed.
func sameBatch(a, b job) bool {
	return a.volume.GroupUUID == b.volume.GroupUUID && (a.volume.State == volume.Doomed) == (b.volume.State == volume.Doomed)
}

// atWork returns the jobs that the removal queues are working on.
func (d *Daemon) atWork() (out []job) {
	for _, q := range d.removalQueues() {
		now, _ := q.at()
		out = append(out, now...)
	}
	return out
}

// jobs returns the removals of a round that are not being worked on yet: the evictions, and the volumes that an
// earlier process has left doomed.
func (d *Daemon) jobs(ctx context.Context, f observation) []job {
	busy := d.announceCommitted(ctx, f)
	var out []job
	add := func(v inventory.Volume, e *eviction.Eviction) {
		if busy[v.ID()] || d.removed.has(v.ID()) || d.tooEarly(v.ID(), f.at) {
			return
		}
		j := job{volume: v, eviction: e, judged: f.objects[string(v.Name)], announced: &sync.Once{}}
		if ref, known := d.releasedClaims.of(v.UUID); known {
			j.claimant = &ref
		}
		if begun, known := d.failedEvictions.of(v.ID()); known {
			j.announced = begun.announced // a volume's eviction is announced once, however often its removal is tried
			if e == nil || begun.orphan() {
				j.eviction, j.claimant = begun.eviction, begun.claimant
			}
		}
		out = append(out, j)
	}
	for _, v := range f.inventory.Volumes { // first: the room of committed removals counts as about to be free
		if v.State == volume.Doomed && v.Cluster == d.cluster {
			add(v, nil)
		}
	}
	orphanAllowed := d.mayEvictOrphan()
	for i := range f.result.Evictions {
		e := &f.result.Evictions[i]
		if !f.confirmed || e.Reason == eviction.ReasonOrphan && !orphanAllowed {
			continue
		}
		add(e.Volume, e)
		orphanAllowed = orphanAllowed && e.Reason != eviction.ReasonOrphan
	}
	return out
}

// tooEarly reports whether a volume's removal has failed and its backoff has not passed.
func (d *Daemon) tooEarly(id string, now time.Time) bool {
	return d.removalRetries.waits(id, now) || d.unanswered.waits(id, now)
}

// mayEvictOrphan reports whether an orphan may be given up now: one at a time, and only once the NodeStorage
// records the last one. So a restart evicts no more orphans than their share, and a crash adds at most the one
// that it interrupted.
func (d *Daemon) mayEvictOrphan() bool {
	if slices.ContainsFunc(d.atWork(), job.orphan) {
		return false
	}
	return d.history.allReported()
}

// announceCommitted returns the IDs of the volumes that the removal queues are working on. It also
// announces evictions that are committed while the volume is still being wiped, which may take hours.
func (d *Daemon) announceCommitted(ctx context.Context, f observation) map[string]bool {
	busy := map[string]bool{}
	for _, j := range d.atWork() {
		busy[j.volume.ID()] = true
		for _, v := range f.inventory.Volumes {
			if v.ID() == j.volume.ID() && v.State == volume.Doomed && j.eviction != nil {
				j.announced.Do(func() { d.announceEvicted(ctx, j) })
			}
		}
	}
	return busy
}

// announceGone announces evictions whose removal seemed to fail although the volume is gone.
func (d *Daemon) announceGone(ctx context.Context, in inventory.Inventory) {
	for _, j := range d.failedEvictions.gone(in) {
		j.announced.Do(func() { d.announceEvicted(ctx, j) })
	}
}

// remove removes the volumes of several jobs of one group together. It is the work of the removal queues.
func (d *Daemon) remove(ctx context.Context, jobs []job) {
	errs := d.removeVolumes(ctx, jobs)
	if ctx.Err() != nil {
		return // the daemon stops; the next process finishes the removal
	}
	defer d.kick()
	for i, j := range jobs {
		d.removedOrNot(ctx, j, errs[i])
	}
}

// removedOrNot records and reports the outcome of a job.
func (d *Daemon) removedOrNot(ctx context.Context, j job, err error) {
	d.clearUnanswered(j.volume.ID(), err)
	if err == nil {
		d.noteRemoved(ctx, j)
		return
	}
	// The other waiting removals were decided on the assumption that this one succeeds.
	d.clearRemovals()
	if r := refusalOf(err); r != nil {
		d.noteRefused(ctx, j, r)
		return
	}
	if !j.directory() && !errors.Is(err, node.ErrInUse) {
		d.proven.drop(j.volume.GroupUUID)
	}
	d.failedEvictions.note(j)
	why, waits := brief(err), false
	if errors.Is(err, node.ErrSyncing) {
		before, _ := d.removalRetries.get(j.volume.ID())
		why += " (" + inSyncText(j.volume.SyncPercent) + ")"
		// Without progress since the last attempt, it counts as failed. The kernel reports progress only every five
		// minutes, or every sixteenth of the volume, so only attempts that are as rare as they get are compared.
		waits = before.why != why || before.delay < d.removalRetries.maxDelay
	}
	if !waits {
		d.out.Metrics.removalFailed()
	}
	d.announceNotRemoved(ctx, j.volume, err, d.removalRetries.add(j.volume.ID(), d.cfg.Now(), why))
}

// inSyncText says how much of a mirror is in sync. percent is LVM's; empty: unknown.
func inSyncText(percent string) string {
	if percent == "" {
		return "how far is unknown"
	}
	return percent + "% in sync"
}

func (d *Daemon) noteRemoved(ctx context.Context, j job) {
	if !j.directory() { // LVM has no part in a directory's removal
		d.proven.add(j.volume.GroupUUID)
	}
	d.removalRetries.clear(j.volume.ID())
	d.removed.add(j.volume.ID())
	d.failedEvictions.drop(j.volume.ID())
	d.dedupe.end("removal " + j.volume.UUID)
	j.announced.Do(func() {
		if j.eviction == nil {
			d.announceFinished(ctx, j)
			return
		}
		d.announceEvicted(ctx, j)
	})
}

// removeVolumes removes the volumes of jobs, and returns an error or nil for each.
func (d *Daemon) removeVolumes(ctx context.Context, jobs []job) []error {
	errs := make([]error, len(jobs))
	var refs []node.Ref
	var of []int        // indexes of their jobs
	unanswered := false // by the API server: if it hangs, each request takes the full timeout
	for i, j := range jobs {
		ref := refOf(j.volume)
		switch {
		case j.volume.State == volume.Doomed:
			ref.Name = j.volume.Name // another volume may have the former name by now
		case unanswered:
			errs[i] = &refusal{fmt.Errorf("evict volume %s: the API server did not confirm that it may be evicted", j.volume.Name), refusedUnanswered}
		default:
			if errs[i] = d.checkRemovable(ctx, j); errs[i] == nil && j.orphan() {
				errs[i] = d.releaseOrphan(ctx, ref, j)
			}
			unanswered = refused(errs[i], refusedUnanswered)
		}
		if errs[i] == nil {
			refs, of = append(refs, ref), append(of, i)
		}
	}
	switch len(refs) {
	case 0:
	case 1:
		errs[of[0]] = d.engine.Remove(ctx, refs[0])
	default:
		for i, err := range d.engine.RemoveAll(ctx, refs) {
			errs[of[i]] = err
		}
	}
	return errs
}

// brief returns an error's text for a status. Expected, transient errors need no detail.
func brief(err error) string {
	if errors.Is(err, node.ErrInUse) {
		return "its device is in use"
	}
	return clip(err.Error(), 200)
}

// clip bounds the length of a text from elsewhere in a message.
func clip(s string, maxLen int) string { return volume.Clip(s, maxLen, "…") }

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

// announceNotRemoved reports, in the log and an event, that a volume could not be removed or must stay.
func (d *Daemon) announceNotRemoved(ctx context.Context, v inventory.Volume, err error, again retry) {
	text := brief(err)
	if refused(err, refusedUnanswered) {
		text = "unanswered" // whichever object was requested first
	}
	if !d.dedupe.note("removal "+v.UUID, text, d.cfg.Now()) {
		return
	}
	klog.FromContext(ctx).Error(err, "A volume could not be removed; it is retried", "volume", eviction.KeyOf(&v).String(), "in", again.delay)
	d.events.onNode(warning, "VolumeNotEvicted", fmt.Sprintf("%v; it is retried", err))
}

func (d *Daemon) announceFinished(ctx context.Context, j job) {
	ref := refOf(j.volume)
	klog.FromContext(ctx).Info("Finished a removal that was begun earlier", "volume", ref.String())
	d.events.onNode(normal, "RemovalFinished", fmt.Sprintf("volume %s is gone: its removal had been begun earlier", ref))
}
