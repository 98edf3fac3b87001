package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxProblem bounds the error on the PersistentVolume of a snapshot that was not taken.
const maxProblem = 1000

// errNotWanted: the PersistentVolume of the volume to be created is gone, is being deleted, or is not usable.
var errNotWanted = errors.New("the volume is no longer wanted")

// roomTimeout is how long a snapshot without room is retried after its first failure before its PersistentVolume
// records the error. Evicting volumes for it takes a while, and once the error is recorded, the snapshot is
// withdrawn, together with its demand for room.
const roomTimeout = 20 * time.Second

// groupOf returns all snapshots of c's group, in the order of their PersistentVolumes' names. It returns
// nil if one is missing or being deleted, or if c is not the first one that is not taken yet, which has the job.
func groupOf(f observation, c *persistentvolume.Volume) (group []createJob) {
	for i := range f.view.PersistentVolumes {
		m := &f.view.PersistentVolumes[i]
		switch {
		case m.SnapshotGroup != c.SnapshotGroup || m.Kind != volume.Snapshot:
			continue
		case m.Deleting || !m.Taken && m.PV < c.PV:
			return nil
		}
		group = append(group, createJob{pv: *m, object: f.objects[m.PV]})
	}
	names := func(j createJob) string { return j.pv.PV }
	slices.SortFunc(group, func(a, b createJob) int { return cmp.Compare(names(a), names(b)) })
	var there []string
	for _, j := range group {
		there = append(there, names(j))
	}
	if !slices.Equal(there, slices.Sorted(strings.SplitSeq(c.Members, ","))) {
		return nil
	}
	return group
}

// members returns the snapshots of a job.
func (j createJob) members() []createJob {
	if j.group == nil {
		return []createJob{j}
	}
	return j.group
}

// thaw thaws the volumes that a killed process has left frozen.
func (d *Daemon) thaw(ctx context.Context) {
	if d.cfg.DryRun {
		return
	}
	err := d.engine.ThawLeft(ctx)
	switch {
	case err == nil:
		d.dedupe.end("thaw")
	case d.dedupe.note("thaw", err.Error(), d.cfg.Now()):
		klog.FromContext(ctx).Error(err, "Volumes are still frozen by a killed process, and their writers block; this is retried")
	}
}

// stillWanted asks the API server, because a round's list may be older than the deletion.
func (d *Daemon) stillWanted(ctx context.Context, j createJob) error {
	for _, m := range j.members() {
		now, err := d.api.Volume(ctx, m.pv.PV)
		switch {
		case apierrors.IsNotFound(err), err == nil && (now.UID != m.pv.UID || now.DeletionTimestamp != nil):
			return errNotWanted
		case err != nil:
			return err
		}
	}
	return nil
}

// take takes the snapshots of a job, if they are still wanted.
func (d *Daemon) take(ctx context.Context, j createJob) ([]inventory.Volume, error) {
	wanted := func(ctx context.Context) error { return d.stillWanted(ctx, j) }
	var requests []node.SnapshotRequest
	for _, m := range j.members() {
		requests = append(requests, node.SnapshotRequest{Spec: specOf(&m.pv), Charged: m.pv.Charge().Noted})
	}
	if j.group != nil {
		return d.engine.MakeSnapshotGroup(ctx, requests, wanted)
	}
	made, err := d.engine.MakeSnapshot(ctx, requests[0], wanted)
	return []inventory.Volume{made}, err
}

// makeSnapshots takes the snapshots of a job and records the outcome on their PersistentVolumes, by which the
// provisioner answers the caller. Killed in between, it leaves taken snapshots, which the next round finds and
// records.
func (d *Daemon) makeSnapshots(ctx context.Context, j createJob) {
	made, err := d.take(ctx, j)
	if ctx.Err() != nil {
		return // the daemon stops; the next process takes them
	}
	defer d.kick()
	if errors.Is(err, errNotWanted) {
		return
	}
	now := d.cfg.Now()
	if errors.Is(err, node.ErrNoSpace) && d.failingFor(j, now) < roomTimeout {
		d.createRetries.add(j.id(), now, err.Error())
		klog.FromContext(ctx).V(1).Info("A snapshot waits for room", "persistentvolume", j.pv.PV, "err", err.Error())
		return
	}
	var wrote []error
	for _, m := range j.members() {
		if !m.pv.Taken {
			wrote = append(wrote, d.api.Annotate(ctx, m.object, whatBecame(&m.pv, made, err)))
		}
	}
	if i := slices.IndexFunc(wrote, apierrors.IsConflict); i >= 0 {
		d.createRetries.add(j.id(), now, wrote[i].Error())
		return // another writer has changed the object
	}
	if err := errors.Join(append(wrote, err)...); err != nil {
		if d.noteCreateFailed(ctx, j, "Snapshot could not be taken", err) {
			for _, m := range j.members() {
				d.events.onVolume(m.object, warning, "SnapshotNotTaken", err.Error())
			}
		}
		return
	}
	d.noteCreated(j)
	for _, m := range j.members() {
		klog.FromContext(ctx).Info("Snapshot taken", "volume", eviction.KeyOfPersistentVolume(&m.pv).String(), "of", m.pv.CloneOf, "group", m.pv.SnapshotGroup)
		d.events.onVolume(m.object, normal, "SnapshotTaken", "the snapshot of volume "+string(m.pv.CloneOf)+" is taken")
	}
}

// failingFor returns how long ago a job first failed, by this node's clock. The creation times of PersistentVolumes
// come from the API server's clock, which may differ.
func (d *Daemon) failingFor(j createJob, now time.Time) time.Duration {
	r, failed := d.createRetries.get(j.id())
	if !failed {
		return 0
	}
	return now.Sub(r.since)
}

// whatBecame returns the annotations that record on a snapshot's PersistentVolume the outcome of taking it with
// its group.
func whatBecame(c *persistentvolume.Volume, made []inventory.Volume, err error) map[string]*string {
	if err != nil {
		return persistentvolume.NotTaken(clip(err.Error(), maxProblem))
	}
	i := slices.IndexFunc(made, func(v inventory.Volume) bool { return v.Group == c.Group && v.Name == c.Volume })
	if i < 0 {
		return persistentvolume.NotTaken("the node reported no result for this snapshot")
	}
	if v := made[i]; c.CopyOnWrite() {
		return persistentvolume.Stored(v.Created, v.Size, v.AllocatedWhenFull)
	}
	return persistentvolume.Taken(made[i].Created, made[i].Size)
}
