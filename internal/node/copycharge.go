package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkRoom fails early if a copy of lv does not fit, because every attempt freezes lv and discards an
// unfinished copy. The call that creates a full copy checks its room itself.
func (e *Engine) checkRoom(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume) error {
	switch {
	case spec.CopyOnWrite():
		size, _ := volume.COWStore(lv.Size, lv.Extent, spec.Reserve)
		return e.lvm.CheckFree(ctx, lv.Group, spec.Shape(), size)
	case spec.Layout != volume.Thin:
		return nil
	case spec.Kind == volume.Snapshot:
		return e.lvm.CheckRoom(ctx, lv, lv.Size) // a snapshot is as large as its source, which may be waiting to grow
	}
	return e.lvm.CheckRoom(ctx, lv, spec.DeviceSize())
}

// checkStoreCharge refuses a copy-on-write snapshot whose store needs more room than is reserved for it, apart from
// LVM's rounding. That happens if its source is larger than its PersistentVolume records. The rest of the room is
// promised to other volumes. It is pure.
func checkStoreCharge(r SnapshotRequest, origin lvm.LogicalVolume) error {
	if !r.CopyOnWrite() || r.Charged == 0 {
		return nil
	}
	store, _ := volume.COWStore(origin.Size, origin.Extent, r.Reserve)
	rounded, _ := volume.COWStore(origin.Shape.RoundUp(r.ContentSize(), origin.Extent), origin.Extent, r.Reserve)
	if kept := max(r.Charged.RoundUp(max(origin.Extent, 1)), rounded); store > kept {
		return refused("%s %q: its store takes %d bytes (%s), because that volume has a device of %s, and %d (%s) are kept for it: the device is larger than the claim's size, for example after an interrupted expansion; request that size in the claim, or use a VolumeSnapshotClass with less %s",
			volume.OptionCloneOf, r.CloneOf, int64(store), store, origin.Size, int64(kept), kept, volume.OptionReserve)
	}
	return nil
}

// checkFullCopyCharge is checkCopyCharge for a full copy. A snapshot of a fixed volume may always be copied,
// because nothing else restores it. It is pure.
func checkFullCopyCharge(c *fullCopy, origin lvm.LogicalVolume) error {
	if c.sourceTags.Fixed {
		return nil
	}
	return checkCopyCharge(c.spec, origin, c.size)
}

// checkCopyCharge refuses a copy that needs more of its pool than its claim is charged, beyond LVM's rounding.
// That happens if the source was adopted, created by another class, or extended by a growth that was killed. source is
// the volume whose layout the copy gets. It is pure.
func checkCopyCharge(spec volume.Spec, source lvm.LogicalVolume, takes volume.Bytes) error {
	charged := spec.DeviceSize()
	if takes <= source.Shape.RoundUp(charged, source.Extent) {
		return nil
	}
	return refused("%s %q: a copy of it takes %d bytes and its claim is charged for %d; delete the claim of the copy and ask for %d or more",
		volume.OptionCloneOf, spec.CloneOf, int64(takes), int64(charged), int64(spec.HeldBy(takes)+volume.Block))
}

// checkCopyLayout decides whether a copy may be created where its spec says, given the layout of its source.
// It is pure.
func checkCopyLayout(spec volume.Spec, lv lvm.LogicalVolume, t volume.Tags) error {
	what := fmt.Sprintf("%s %q: that volume", volume.OptionCloneOf, spec.CloneOf)
	thin, snapshot := lv.Shape.Layout == volume.Thin, spec.Kind == volume.Snapshot
	switch {
	case spec.Layout == volume.Thin:
		if !thin || lv.Shape.ThinPool != spec.ThinPool {
			return refused("%s is no thin volume in pool %s, so it cannot be copied there", what, spec.Pool())
		}
		if !snapshot {
			return checkCopyCharge(spec, lv, lv.Size)
		}
	case snapshot && (thin || lv.Shape.Layout == ""):
		return refused("%s is thin or has a layout that flexlvm does not support, so it cannot have a copy-on-write snapshot", what)
	case !snapshot && (t.Kind != volume.Snapshot || lv.Origin == ""):
		return refused("%s is no copy-on-write snapshot; a full copy needs one, because it does not change", what)
	case lv.Overflowed:
		return refused("%s has overflowed: its source has overwritten more than it had room for, or the disk of its store has failed, so it holds nothing any more and cannot be restored; delete it, and give the next more room (%s of its VolumeSnapshotClass)", what, volume.OptionReserve)
	}
	return nil
}
