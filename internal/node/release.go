package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Release changes a volume's state when its PersistentVolume is permanently gone: to Unreferenced, so that
// its space may be reclaimed as d says, or to Retained. The caller is responsible for the proof of that. A
// volume already in that state is left alone. An unreferenced volume may still become retained; otherwise a
// volume in any state but creating and ready is refused. Release waits for another call no longer than
// roundLockTimeout (ErrBusy).
//
// If the volume does not exist, a call that is in progress can no longer create it, so a mount fails if its
// claim is deleted meanwhile. Later calls may use the name again only for some kinds (see Ref.Kind).
func (e *Engine) Release(ctx context.Context, ref Ref, to volume.State, d volume.Disposal) error {
	if to != volume.Unreferenced && to != volume.Retained {
		return fmt.Errorf("release volume %s: state %s is neither unreferenced nor retained", ref, to)
	}
	release, err := e.lockWithin(ctx, e.roundLockTimeout, ref.Group, ref.Name)
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
		return e.flushTags(ctx, lv)
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
	zeroes := lv.Shape.Layout != volume.Thin && lv.Origin == "" && tags.Clone == ""
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
