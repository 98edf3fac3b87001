package node

import (
	"context"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkRoom makes sure that there is room for a copy of lv: each try freezes that, and takes
// half a copy away. The call that makes a full copy finds out by itself.
func (e *Engine) checkRoom(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume) error {
	switch {
	case spec.CopyOnWrite():
		size, _ := volume.COWStore(lv.Size, lv.Extent, spec.Reserve)
		return e.lvm.CheckFree(ctx, lv.Group, spec.Shape(), size)
	case spec.Layout != volume.Thin:
		return nil
	case spec.Kind == volume.Snapshot:
		return e.lvm.CheckRoom(ctx, lv, lv.Size) // it is as large as its source, which may be waiting to grow
	}
	return e.lvm.CheckRoom(ctx, lv, spec.DeviceSize())
}

// mayTakeInFull refuses a full copy that takes more of its group than its claim is charged, by more
// than LVM rounds up: the snapshot's source was adopted, or a growth that was killed has extended
// it. One that is fixed has nothing else to be restored to. It is pure.
func mayTakeInFull(c *fullCopy, origin lvm.LogicalVolume) error {
	charged := c.spec.DeviceSize()
	if c.of.Fixed || c.size <= origin.Shape.Extents(charged, origin.Extent) {
		return nil
	}
	return refused("%s %q: a copy of it takes %d bytes and its claim is charged for %d; delete the claim of the copy and ask for %d or more",
		volume.OptionCloneOf, c.spec.CloneOf, int64(c.size), int64(charged), int64(c.spec.HeldBy(c.size)+volume.Block))
}
