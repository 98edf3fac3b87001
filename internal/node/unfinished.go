package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// dropUnfinished removes a volume that LVM has not finished making, and reports whether it has.
// It is an error, and for a person to look at, where there is any record of the volume, or where
// it is not a new one that is asked for; and where devices of its group are missing, as the others
// may hold older metadata.
func (e *Engine) dropUnfinished(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags) (bool, error) {
	unfinished, err := e.lvm.Unfinished(ctx, lv)
	if err != nil || !unfinished {
		return false, err
	}
	g, err := e.lvm.Group(ctx, lv.Group)
	if err != nil {
		return false, err
	}
	known, err := e.records.served(lv.Group, lv.Name)
	if err == nil && (known || g.Missing > 0 || tags.State != volume.Creating || spec.FS != "") {
		err = fmt.Errorf("%w: LVM has not finished making %s/%s, and its tags, its PersistentVolume, this node's record or missing devices (`pvs`) say that it may have been in use; a person must look", ErrDamaged, lv.Group, lv.Name)
	}
	if err == nil {
		err = e.dropHalf(ctx, spec, lv)
	}
	return err == nil, err
}

// endsSkipping is what to do about lvm.LogicalVolume.Skipped.
func endsSkipping(lv lvm.LogicalVolume) string {
	return "`lvchange --setactivationskip n " + string(lv.Group) + "/" + string(lv.Name) + "` ends that"
}
