package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A SnapshotRequest describes a snapshot that is to be taken.
type SnapshotRequest struct {
	volume.Spec
	// Charged is how much of its pool is reserved for it; 0 if that is unknown.
	Charged volume.Bytes
}

// MakeSnapshot takes a snapshot of a volume (Spec.CloneOf), unless that was done, and returns it: for a thin
// volume a thin snapshot in its pool, for others one with a store of its own in their group
// (Spec.CopyOnWrite). It first writes back unsynced data; then LVM freezes the file system for a moment, so
// the snapshot holds what a disk would hold after a power cut at the moment Created. The snapshot keeps the
// size of its source, its file system's UUID and, if it is encrypted, its header, so no key is needed. A
// snapshot is never mounted: Spec.CloneOf of another volume names it, and its source may be removed.
//
// The snapshot becomes ready by a separate write of LVM's metadata. Killed before, MakeSnapshot leaves an
// unfinished snapshot, which the next call takes again: after a power cut LVM may send the command to its
// pool only much later, and the snapshot would be of that time.
//
// A snapshot that was given up may be taken again under its name, but not by a call that began before that.
// MakeSnapshot calls wanted once, and fails if that fails; a snapshot that is given up from then on is not taken.
func (e *Engine) MakeSnapshot(ctx context.Context, r SnapshotRequest, wanted func(context.Context) error) (inventory.Volume, error) {
	if err := checkSnapshot(r.Spec); err != nil {
		return inventory.Volume{}, err
	}
	givenUp := e.givenUpAt(r.Spec)
	if err := wanted(ctx); err != nil {
		return inventory.Volume{}, err
	}
	return e.makeSnapshot(ctx, r, givenUp)
}

func checkSnapshot(spec volume.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.Kind != volume.Snapshot || spec.Namespace == "" {
		return &volume.FieldError{Field: volume.OptionKind, Value: string(spec.Kind), Reason: "is not snapshot, or the namespace is missing"}
	}
	return nil
}

// makeSnapshot takes the snapshot if it has not been taken. givenUp is the time, read when the call
// began, at which it had last been given up. If it has been given up again since then, the call is
// stale and is refused.
func (e *Engine) makeSnapshot(ctx context.Context, r SnapshotRequest, givenUp time.Time) (inventory.Volume, error) {
	spec := r.Spec
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, spec.Group, spec.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	defer release()
	lv, state, err := e.findSnapshot(ctx, spec, givenUp)
	switch {
	case err != nil:
		return inventory.Volume{}, err
	case state == volume.Ready:
		// A killed call may have left the tags in the disk's cache.
		return e.describe(lv), e.lvm.Flush(ctx, lv.Group, lv.Name)
	case state == volume.Creating:
		if spec.CopyOnWrite() {
			err = e.removeIncomplete(ctx, spec, lv) // its store may be the room that the next one needs
		} else {
			err = e.removeUnfinishedCopy(ctx, spec, lv, luks.Key{})
		}
		if err != nil {
			return inventory.Volume{}, err
		}
	}
	return e.takeSnapshot(ctx, r)
}

// findSnapshot looks up the volume of a snapshot and returns its state, which is empty if the snapshot is to
// be taken. The caller holds its lock.
func (e *Engine) findSnapshot(ctx context.Context, spec volume.Spec, givenUp time.Time) (lvm.LogicalVolume, volume.State, error) {
	lv, err := e.lvm.Volume(ctx, spec.Group, spec.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		if now := e.givenUpAt(spec); !now.IsZero() && !now.Equal(givenUp) {
			return lv, "", refused("snapshot %s/%s was given up while this call waited, and is not taken for it", spec.Group, spec.Name)
		}
		if since, ok := e.records.blockedByTombstone(spec.Group, spec.Name, e.now()); ok {
			return lv, "", removedErr(spec, since) // a claim's volume had that name
		}
		return lv, "", nil
	}
	if err != nil {
		return lv, "", e.explainGroup(ctx, spec, err)
	}
	tags, err := ownedTags(lv)
	if err == nil {
		err = e.explainGroup(ctx, spec, isSnapshot(spec, tags, lv.GroupUUID))
	}
	return lv, tags.State, err
}

func (e *Engine) takeSnapshot(ctx context.Context, r SnapshotRequest) (inventory.Volume, error) {
	if err := e.checkGroupUUID(ctx, r.Spec); err != nil {
		return inventory.Volume{}, err
	}
	err := e.withSourceLock(ctx, r.Group, r.CloneOf, func() error {
		origin, sourceTags, c, err := e.snapshotSource(ctx, r)
		if err != nil {
			return err
		}
		if err := writeBack(origin, c); err != nil {
			return err
		}
		_, err = e.takeCopy(ctx, r.Spec, origin, sourceTags)
		return err
	})
	if err != nil {
		return inventory.Volume{}, err
	}
	e.after("snapshot")
	return e.finishSnapshot(ctx, r.Spec)
}

// snapshotSource is source for a snapshot, and refuses one that needs more room than is reserved for it.
func (e *Engine) snapshotSource(ctx context.Context, r SnapshotRequest) (lvm.LogicalVolume, volume.Tags, content, error) {
	origin, of, c, err := e.source(ctx, r.Spec, luks.Key{})
	if err == nil {
		err = checkStoreCharge(r, origin)
	}
	return origin, of, c, err
}

// finishSnapshot makes a snapshot that was taken ready, durably.
func (e *Engine) finishSnapshot(ctx context.Context, spec volume.Spec) (inventory.Volume, error) {
	lv, err := e.lvm.Volume(ctx, spec.Group, spec.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	if err := isTaken(spec, lv); err != nil {
		return inventory.Volume{}, err
	}
	if err := e.lvm.Retag(ctx, lv, []string{volume.Creating.Tag()}, []string{volume.Ready.Tag()}); err != nil {
		return inventory.Volume{}, err
	}
	e.after("tag ready")
	if lv, err = e.lvm.Volume(ctx, spec.Group, spec.Name); err != nil {
		return inventory.Volume{}, err
	}
	return e.describe(lv), nil
}

// isTaken refuses a copy-on-write snapshot that LVM shows as something else, or as overflowed. It is pure.
func isTaken(spec volume.Spec, lv lvm.LogicalVolume) error {
	if spec.CopyOnWrite() && (lv.Origin != spec.CloneOf || lv.Overflowed) {
		return fmt.Errorf("take snapshot %s/%s: LVM shows it as %s; it is taken again", spec.Group, spec.Name, snapshotNow(lv))
	}
	return nil
}

// snapshotNow describes what LVM shows of a volume that should be a copy-on-write snapshot.
func snapshotNow(lv lvm.LogicalVolume) string {
	switch {
	case lv.Overflowed:
		return "one that has overflowed"
	case lv.Origin == "":
		return "a volume of its own"
	}
	return "a snapshot of " + string(lv.Origin)
}

// isSnapshot decides whether a volume with these tags is the snapshot of a spec, complete or not. The size is
// not compared: it is that of the source when the snapshot was taken. It is pure.
func isSnapshot(spec volume.Spec, t volume.Tags, groupUUID string) error {
	if err := checkGroup(spec, groupUUID); err != nil {
		return err
	}
	spec.Size = t.Size
	if err := checkOwner(spec, t); err != nil {
		return err
	}
	if t.State != volume.Creating && t.State != volume.Ready {
		return refused("snapshot %s/%s is %s: it was deleted", spec.Group, spec.Name, t.State)
	}
	return nil
}
