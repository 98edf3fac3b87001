package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Ref names a volume on this node, and the cluster that it belongs to.
type Ref struct {
	Group   volume.Group
	Name    volume.Name
	Cluster string
	// DirectoryPool is the pool of a directory volume; empty for all others.
	DirectoryPool volume.Name
	// Kind matters if the volume does not exist: the name of a dataset's replica, or of a snapshot, may be
	// used again; the name of a claim's volume (empty) never is.
	Kind volume.Kind
	// UUID, if set, is the LVM UUID of the volume: Release and Remove do not touch another volume that has
	// this name now.
	UUID string
}

func (r Ref) String() string { return string(r.Group) + "/" + string(r.Name) }

// ErrInUse: the volume's device is open, or its directory mounted, in this mount namespace or another.
var ErrInUse = errors.New("in use")

// ErrBusy: another call holds the volume's lock for longer than this call waits.
var ErrBusy = lock.ErrBusy

// roundLockTimeout is how long Release and SetStateOf wait for a call that holds the volume's lock, such as a
// mount that zeroes the volume, or an unmount that hangs. The node daemon's rounds wait for them, and so do
// all other volumes.
const roundLockTimeout = 5 * time.Second

// ErrNoSpace: the volume's group or pool lacks the necessary room.
var ErrNoSpace = lvm.ErrNoSpace

// ErrNoVolume: LVM sees the complete group, and the volume is not in it.
var ErrNoVolume = lvm.ErrNoVolume

// lookUpOwned looks up a volume under its current name and checks that it belongs to flexlvm and to the
// cluster of ref.
func (e *Engine) lookUpOwned(ctx context.Context, ref Ref, now volume.Name) (lvm.LogicalVolume, volume.Tags, error) {
	lv, err := e.volumeOf(ctx, ref, now)
	if err != nil {
		return lv, volume.Tags{}, err
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return lv, tags, err
	}
	if tags.Cluster != ref.Cluster {
		return lv, tags, refused("volume %s was created for cluster %q, not for %q", ref, tags.Cluster, ref.Cluster)
	}
	return lv, tags, nil
}

// checkUUID refuses a volume whose UUID is not the UUID of the ref, if that has one.
func (r Ref) checkUUID(lv lvm.LogicalVolume) error {
	if r.UUID != "" && r.UUID != lv.UUID {
		return refused("volume %s was replaced: its UUID is %s; expected %s", r, lv.UUID, r.UUID)
	}
	return nil
}

// Remove removes an unreferenced volume: it tags the volume as doomed, which commits the removal and prevents
// mounts, renames it, which frees its name, wipes it as its tags say, and removes it. For a directory volume,
// the rename is the commit. Remove succeeds if the volume is already gone, that is, LVM sees the group
// without it. A volume whose device is open is refused with ErrInUse and untouched; so is a volume in any
// state but unreferenced.
//
// Killed before the commit, Remove has changed only the node's record of the volume, which the tags in LVM
// override; killed later, the next call continues from there. LVM changes the tags only while they still say
// unreferenced. The rename follows the tag because LVM selects only by name there: a rename that LVM finishes
// late, for a killed call, could otherwise hit a volume that was brought back meanwhile. Only the caller
// waits for the wiping: the name is free as soon as the volume is renamed. A ref with a doomed name means
// only that volume, because a new replica of the dataset may already have the former name.
func (e *Engine) Remove(ctx context.Context, ref Ref) error {
	if ref.Name.IsDoomed() {
		ref.Name = ref.Name.Undoomed()
		return e.finishRemoval(ctx, ref)
	}
	if err := e.finishRemoval(ctx, ref); err != nil {
		return err
	}
	doomed, err := e.commitRemoval(ctx, ref)
	if err != nil || !doomed {
		return err
	}
	return e.finishRemoval(ctx, ref)
}

// commitRemoval commits the removal of a volume, or completes the commit of one that RemoveAll has tagged and not
// removed. It returns false if there is no such volume.
func (e *Engine) commitRemoval(ctx context.Context, ref Ref) (bool, error) {
	release, err := e.lockVolume(ctx, ref.Group, ref.Name)
	if err != nil {
		return false, err
	}
	defer release()
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name)
	switch {
	case errors.Is(err, lvm.ErrNoVolume):
		return false, nil
	case err != nil:
		return false, err
	case ref.checkUUID(lv) != nil:
		return false, ref.checkUUID(lv)
	}
	if err := checkRemovable(ref, lv, tags); err != nil {
		return false, err
	}
	e.removeRecordsOfGone(ctx, ref.Group)
	if err := e.recordTombstone(ref, tags.Kind); err != nil {
		return false, err
	}
	e.after("remove record")
	if err := e.tagDoomed(ctx, ref, lv, tags); err != nil {
		return false, err
	}
	if err := e.renameVolume(ctx, lv, ref.Name.Doomed()); err != nil {
		return false, err
	}
	e.after("lvrename")
	return true, nil
}

// recordTombstone replaces a volume's record with a tombstone before the volume is removed, to keep out late
// calls: all calls for a claim's volume, whose name is never used again; calls in progress for a dataset's
// replica or a snapshot, which may be created again under its name.
func (e *Engine) recordTombstone(ref Ref, kind volume.Kind) error {
	e.expireTombstones(ref.Group, ref.Name)
	return e.records.writeTombstone(ref.Group, ref.Name, kind, e.now())
}

// finishRemoval removes a volume that an earlier call has doomed, if there is one.
func (e *Engine) finishRemoval(ctx context.Context, ref Ref) error {
	release, err := e.lockVolume(ctx, ref.Group, ref.Name.Doomed())
	if err != nil {
		return err
	}
	defer release()
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name.Doomed())
	if errors.Is(err, lvm.ErrNoVolume) {
		return e.records.remove(ref.Group, ref.Name.Doomed()) // a call was killed before it removed the record
	}
	if err != nil {
		return err
	}
	if lv.HasSnapshots {
		return hasSnapshotsErr(ref)
	}
	if err := e.tagDoomed(ctx, ref, lv, tags); err != nil {
		return err
	}
	if tags.Wipe != volume.WipeNone {
		if lv.Origin != "" {
			if lv, err = e.lvm.Split(ctx, lv); err != nil {
				return err
			}
			e.after("split")
		}
		if err := e.wipe(ctx, lv, tags); err != nil {
			return explainDeviceError(lv, err)
		}
		e.after("wipe")
	}
	if err := e.removeVolume(ctx, lv); err != nil {
		return err
	}
	e.after("lvremove")
	e.signalRoomFreed()
	return errors.Join(e.removeNotes(lv.UUID), e.records.remove(lv.Group, lv.Name))
}

// tagDoomed tags as doomed a volume that is being removed, or whose name says so. A directory volume needs
// no tag: its doomed name is enough.
func (e *Engine) tagDoomed(ctx context.Context, ref Ref, lv lvm.LogicalVolume, tags volume.Tags) error {
	directory := lv.Shape.Layout == volume.Directory
	switch {
	case tags.State == volume.Doomed:
		return nil
	case volume.MayMove(tags.State, volume.Doomed, volume.ByEngine):
		if directory {
			return nil
		}
	case directory:
		return refused("volume %s is in the pool's directory of volumes being removed and is %s; correct its record (%s)", ref, tags.State, recordOf(lv))
	default:
		return refused("volume %s has the name of a volume that is being removed and is %s; correct its tags, or rename it (`lvrename %s %s %s`)",
			ref, tags.State, ref.Group, lv.Name, ref.Name)
	}
	if err := e.retag(ctx, lv, []string{tags.State.Tag()}, []string{volume.Doomed.Tag()}); err != nil {
		return err
	}
	e.after("tag doomed")
	return nil
}

// hasSnapshotsErr returns the refusal of the removal of a volume with snapshots, because LVM removes these with
// it, and some may not be flexlvm's.
func hasSnapshotsErr(ref Ref) error {
	return refused("volume %s has snapshots, which would be removed with it; delete its VolumeSnapshots, and remove those that are not flexlvm's (`lvs -o lv_name,origin,lv_tags %s`)", ref, ref.Group)
}

// checkRemovable refuses a volume that may not be removed. A volume that is already doomed may be.
func checkRemovable(ref Ref, lv lvm.LogicalVolume, tags volume.Tags) error {
	switch {
	case tags.State != volume.Doomed && !volume.MayMove(tags.State, volume.Doomed, volume.ByEngine):
		return refused("volume %s is %s; only an unreferenced volume is removed", ref, tags.State)
	case lv.HasSnapshots:
		return hasSnapshotsErr(ref)
	case lv.Open:
		return inUseErr(ref, lv)
	}
	return nil
}

func inUseErr(ref Ref, lv lvm.LogicalVolume) error {
	return fmt.Errorf("remove volume %s: %w: %s; it is retried", ref, ErrInUse, describeUse(lv))
}

// describeUse describes how a volume is in use.
func describeUse(lv lvm.LogicalVolume) string {
	if lv.Shape.Layout == volume.Directory {
		return "it is mounted on this node, be it for one process alone"
	}
	return "its device is open on this node"
}
