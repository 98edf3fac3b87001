package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// roundPatience is how long Release and SetStateOf wait for a call that holds the volume's lock, such as a
// mount that zeroes the volume, or an unmount that hangs. The node daemon's rounds wait for them, and so do
// all other volumes.
const roundPatience = 5 * time.Second

// ErrNoSpace: the volume's group or pool lacks the necessary room.
var ErrNoSpace = lvm.ErrNoSpace

// Release changes a volume's state when its PersistentVolume is permanently gone: to Unreferenced, so that
// its space may be reclaimed as d says, or to Retained. The caller is responsible for the proof of that. A
// volume already in that state is left alone. An unreferenced volume may still become retained; otherwise a
// volume in any state but creating and ready is refused. Release waits for another call no longer than
// roundPatience (ErrBusy).
//
// If the volume does not exist, a call that is in progress can no longer create it, so a mount fails if its
// claim is deleted meanwhile. Later calls may use the name again only for some kinds (see Ref.Kind).
func (e *Engine) Release(ctx context.Context, ref Ref, to volume.State, d volume.Disposal) error {
	if to != volume.Unreferenced && to != volume.Retained {
		return fmt.Errorf("release volume %s: state %s is neither unreferenced nor retained", ref, to)
	}
	release, err := e.lockWithin(ctx, e.roundPatience, ref.Group, ref.Name)
	if err != nil {
		return err
	}
	defer release()
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		e.removeRecordsOfGone(ctx, ref.Group)
		return e.recordTombstone(ref, ref.Kind)
	}
	if err != nil {
		return err
	}
	if err := ref.checkUUID(lv); err != nil {
		return err
	}
	if tags.State == to {
		// A killed call may have left the tags in the disk's cache.
		return e.flush(ctx, lv)
	}
	if !volume.MayMove(tags.State, to, volume.ByRelease) {
		return refused("volume %s is %s and cannot become %s", ref, tags.State, to)
	}
	if lv.Shape.Layout == volume.Directory && d.Wipe != volume.WipeNone && d.Wipe != "" {
		return refused("volume %s has layout %s and cannot be wiped (%s): its blocks are its file system's, which shows nobody what another has deleted; have its PersistentVolume ask for none", ref, volume.Directory, d.Wipe)
	}
	tags.Reclaim, tags.Wipe = d.Reclaim, d.Wipe
	return e.writeState(ctx, lv, tags, to)
}

// writeState writes a volume's new state, with the disposal in tags, to its record and its tags. It writes
// the record first if the volume may no longer be mounted, and last if it may be mounted again: a call that
// dies in between leaves a record that makes the next mount ask LVM.
func (e *Engine) writeState(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags, to volume.State) error {
	del, add := tagChange(lv.Tags, to, tags)
	if neverZeroed(lv, tags) {
		add = append(add, volume.ZeroedTag(1))
	}
	tags.State = to
	rec := newRecord(lv.UUID, tags)
	if to != volume.Ready {
		rec.Since = e.now()
		if err := e.record(lv, rec); err != nil {
			return err
		}
	}
	if err := e.retag(ctx, lv, del, add); err != nil {
		return err
	}
	e.after("tag " + string(to))
	if to == volume.Ready {
		return e.record(lv, rec)
	}
	return nil
}

// neverZeroed reports whether a raw block volume in state creating may not be zeroed at all. Only that state
// shows this, and the volume is about to leave it: if a person brought the volume back, a pod would read data
// that others have left on the disk.
func neverZeroed(lv lvm.LogicalVolume, tags volume.Tags) bool {
	zeroes := lv.Shape.Layout != volume.Thin && lv.Of == "" && tags.Clone == ""
	return zeroes && tags.State == volume.Creating && tags.FSType == volume.Raw && tags.Zeroed == 0
}

// record writes rec. If this node had no record, the volume's last use is unknown, and its creation time is
// used.
func (e *Engine) record(lv lvm.LogicalVolume, rec record) error {
	used := e.records.lastUsed(lv.Group, lv.Name)
	if used.IsZero() {
		used = lv.Created
	}
	if err := e.records.writeUsed(lv.Group, lv.Name, rec, used); err != nil {
		return err
	}
	e.after("record " + string(rec.State))
	return nil
}

// tagChange returns the tags to remove and to add for a volume to be in state to, with the disposal of t.
func tagChange(have []string, to volume.State, t volume.Tags) (del, add []string) {
	want := append([]string{to.Tag()}, volume.DisposalTags(t.Reclaim, t.Wipe)...)
	for _, tag := range have {
		if volume.IsStateTag(tag) && !slices.Contains(want, tag) {
			del = append(del, tag)
		}
	}
	for _, tag := range want {
		if !slices.Contains(have, tag) {
			add = append(add, tag)
		}
	}
	return del, add
}

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
		return lv, tags, refused("volume %s was made for cluster %q, not for %q", ref, tags.Cluster, ref.Cluster)
	}
	return lv, tags, nil
}

// checkUUID refuses a volume whose UUID is not the UUID of the ref, if that has one.
func (r Ref) checkUUID(lv lvm.LogicalVolume) error {
	if r.UUID != "" && r.UUID != lv.UUID {
		return refused("volume %s is another by now: its UUID is %s, and %s is meant", r, lv.UUID, r.UUID)
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
	if err := e.markDoomed(ctx, ref, lv, tags); err != nil {
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
	if lv.Origin {
		return hasSnapshotsErr(ref)
	}
	if err := e.markDoomed(ctx, ref, lv, tags); err != nil {
		return err
	}
	if tags.Wipe != volume.WipeNone {
		if lv.Of != "" {
			if lv, err = e.lvm.Split(ctx, lv); err != nil {
				return err
			}
			e.after("split")
		}
		if err := e.wipe(ctx, lv, tags.Wipe); err != nil {
			return err
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

// markDoomed tags as doomed a volume that is being removed, or whose name says so. A directory volume needs
// no tag: its doomed name is enough.
func (e *Engine) markDoomed(ctx context.Context, ref Ref, lv lvm.LogicalVolume, tags volume.Tags) error {
	directory := lv.Shape.Layout == volume.Directory
	switch {
	case tags.State == volume.Doomed:
		return nil
	case volume.MayMove(tags.State, volume.Doomed, volume.ByEngine):
		if directory {
			return nil
		}
	case directory:
		return refused("volume %s lies among those that are being removed and is %s; correct its record (%s)", ref, tags.State, recordOf(lv))
	default:
		return refused("volume %s carries the name of one that is being removed and is %s; put its tags right, or rename it (`lvrename %s %s %s`)",
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
