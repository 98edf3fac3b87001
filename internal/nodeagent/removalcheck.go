package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkRemovable checks with the API server, right before a removal, that no PersistentVolume keeps the volume.
func (d *Daemon) checkRemovable(ctx context.Context, j job) error {
	switch {
	case j.orphan():
		return d.checkOrphan(ctx, j.volume)
	case j.volume.Kind == volume.Dataset: // their PersistentVolumes have other names than the volumes
		return nil
	}
	return d.checkNotKept(ctx, j.volume, j.judged)
}

// A refusal is the reason why the engine is not asked to remove an unreferenced volume.
type refusal struct {
	err  error
	kind refusalKind
}

type refusalKind int

const (
	refusedUnanswered refusalKind = iota // the API server has not answered whether a PersistentVolume keeps the volume
	refusedKept                          // a PersistentVolume that no list of this node has keeps the volume
	refusedChanged                       // the PersistentVolume of this node that names the volume is not the judged one
)

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// refused reports whether an error is a refusal of that kind.
func refused(err error, kind refusalKind) bool {
	r := refusalOf(err)
	return r != nil && r.kind == kind
}

// refusalOf returns the refusal in an error's chain, or nil.
func refusalOf(err error) *refusal {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r
	}
	return nil
}

// checkNotKept gets the PersistentVolume with a volume's name from the API server. It returns a refusal if that
// object keeps the volume (it wants the volume or has the policy Retain) and is not the one that was judged when the
// removal was decided: its label names no node or another one, as after a rename of the node or a move of the disk,
// unless it certainly refers to something else; or it was created or changed since.
func (d *Daemon) checkNotKept(ctx context.Context, v inventory.Volume, judged *corev1.PersistentVolume) error {
	object, err := d.api.Volume(ctx, string(v.Name))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return &refusal{fmt.Errorf("evict volume: %w", err), refusedUnanswered}
	}
	c, err := persistentvolume.Parse(object)
	if err == nil && c.BeingRemoved() && c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	switch here := object.Labels[pv.LabelNode] == pv.NodeLabelValue(d.cfg.Node); {
	case !here && isForeign(object), !here && err == nil && otherFS(v, c):
		return nil
	case !here:
		return &refusal{fmt.Errorf("evict volume: %w", d.namedErr(v, object)), refusedKept}
	case judged == nil || !same(object, judged):
		return &refusal{fmt.Errorf("evict volume %s: PersistentVolume %s has changed since that was decided", v.Name, object.Name), refusedChanged}
	}
	return nil
}

// isForeign reports whether a PersistentVolume cannot refer to a volume of flexlvm, because another driver serves it. A
// path on a node may: a person can write the path of any device there.
func isForeign(object *corev1.PersistentVolume) bool {
	return !persistentvolume.IsOurs(object) && object.Spec.Local == nil && object.Spec.HostPath == nil
}

// otherFS reports whether a PersistentVolume was created for another file system than that of the volume with its
// name, for example because an adopted volume was moved to another node. The engine mounts no other file system for
// it.
func otherFS(v inventory.Volume, c persistentvolume.Volume) bool {
	return c.FS != "" && v.FS != "" && c.FS != v.FS
}

// clearUnanswered clears a volume's wait for an answer of the API server, unless err is that there was none.
func (d *Daemon) clearUnanswered(id string, err error) {
	if !refused(err, refusedUnanswered) {
		d.unanswered.clear(id)
	}
}

// noteRefused records and reports that a volume stays for now, which says nothing about LVM. A kept volume
// counts as wanted from now on. A volume about which the API server has not answered is not replaced by another
// eviction.
func (d *Daemon) noteRefused(ctx context.Context, j job, r *refusal) {
	id, now := j.volume.ID(), d.cfg.Now()
	var again retry
	switch r.kind {
	case refusedKept:
		d.removalRetries.clear(id)
		again = d.keptElsewhere.add(j.volume.UUID, now, brief(r))
	case refusedChanged:
		again = d.removalRetries.add(id, now, brief(r))
	case refusedUnanswered:
		d.out.Metrics.removalFailed()
		again = d.unanswered.add(id, now, brief(r))
	}
	d.announceNotRemoved(ctx, j.volume, r, again)
}

// checkOrphan checks with the API server that a volume is still an orphan.
func (d *Daemon) checkOrphan(ctx context.Context, v inventory.Volume) error {
	if err := d.checkUnnamed(ctx, v); err != nil {
		return fmt.Errorf("evict orphan: %w", err)
	}
	if why := d.watches.revisions.wentBack(); why != "" {
		return fmt.Errorf("evict orphan: the API server has gone back in time (%s), and may lack its PersistentVolume", why)
	}
	return nil
}

// releaseOrphan makes an orphan, right after checkRemovable has checked it, unreferenced, because the engine removes
// unreferenced volumes only; --evict-orphans permits this. From then on the orphan counts as evicted, whatever becomes
// of its removal.
func (d *Daemon) releaseOrphan(ctx context.Context, ref node.Ref, j job) error {
	disposal := volume.Disposal{Reclaim: j.volume.Reclaim, Wipe: j.volume.Wipe}
	if err := d.engine.Release(ctx, ref, volume.Unreferenced, disposal); err != nil {
		return err
	}
	d.history.add(d.cfg.Now(), *j.eviction)
	return nil
}

// checkUnnamed returns an error if a PersistentVolume names a volume. That includes a PersistentVolume in no round's
// list because it has no node label, or another node's: it may have lost the label, or the node was renamed. Among
// the PersistentVolumes labelled for other nodes, checkUnnamed finds only one with the volume's name, and those of
// the volume's dataset.
func (d *Daemon) checkUnnamed(ctx context.Context, v inventory.Volume) error {
	object, err := d.api.Volume(ctx, string(v.Name))
	switch {
	case err == nil:
		return d.namedErr(v, object)
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
		c, err := persistentvolume.Parse(&here[i])
		// A copy that exists no longer needs its source, although its PersistentVolume still names it. A copy of
		// this node that does not exist has kept the source from being an orphan.
		if err == nil && c.Volume == v.Name || err != nil && names(&here[i]) {
			return d.namedErr(v, &here[i])
		}
	}
	nowhere, err := d.api.VolumesWithoutNodeLabel(ctx, names)
	if err != nil {
		return err
	}
	if len(nowhere) > 0 {
		return d.namedErr(v, &nowhere[0])
	}
	return d.checkNoReplica(ctx, v)
}

// checkNoReplica returns an error if a PersistentVolume of any node names a volume that is a replica of a dataset. All
// replicas of a dataset have the same volume name, so a replica of another node is distinguished by its volume group. The
// readers' PersistentVolume has the label, too, and keeps the volume while the dataset exists: Parse refuses it.
func (d *Daemon) checkNoReplica(ctx context.Context, v inventory.Volume) error {
	hash, is := replica.HashOf(string(v.Name))
	switch {
	case !is && v.Kind == volume.Dataset:
		return fmt.Errorf("volume %s is a replica, but its name is not that of a dataset, so its PersistentVolume cannot be found; if nobody needs it, release it on its node (`flexlvm volumes forget %s`)", v.Name, v.Name)
	case !is:
		return nil
	}
	objects, err := d.api.VolumesLabelled(ctx, replica.LabelDataset, hash)
	if err != nil {
		return err
	}
	for i := range objects {
		c, err := persistentvolume.Parse(&objects[i])
		if err != nil || c.Volume == v.Name && c.InGroup(v.GroupUUID) {
			return d.namedErr(v, &objects[i])
		}
	}
	return nil
}

func (d *Daemon) namedErr(v inventory.Volume, by *corev1.PersistentVolume) error {
	label, here := by.Labels[pv.LabelNode], pv.NodeLabelValue(d.cfg.Node)
	if label == here {
		return fmt.Errorf("PersistentVolume %s names volume %s: delete its claim, and the volume is released by itself", by.Name, v.Name)
	}
	if !persistentvolume.IsOurs(by) {
		return fmt.Errorf("PersistentVolume %s, which is not flexlvm's, may mean volume %s: delete the PersistentVolume if nobody needs it", by.Name, v.Name)
	}
	return fmt.Errorf("PersistentVolume %s names volume %s, and its label %s is %q and not %q: correct the label, or delete the PersistentVolume if nobody needs it",
		by.Name, v.Name, pv.LabelNode, label, here)
}
