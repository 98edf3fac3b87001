package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// dropUnfinished removes a volume whose creation LVM has not finished, and reports whether it has. It fails,
// for a person to look, if this node has any record of the volume, if the tags or the spec are not those of a
// new volume, or if devices of its group are missing, because the remaining ones may hold older metadata.
func (e *Engine) dropUnfinished(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags) (bool, error) {
	unfinished, err := e.lvm.Unfinished(ctx, lv)
	if err != nil || !unfinished {
		return false, err
	}
	g, err := e.lvm.Group(ctx, lv.Group)
	if err != nil {
		return false, err
	}
	known, err := e.records.hasRecordOf(lv.Group, lv.Name)
	if err == nil && (known || g.Missing > 0 || tags.State != volume.Creating || spec.FS != "") {
		err = fmt.Errorf("%w: LVM has not finished making %s/%s, and its tags, its PersistentVolume, this node's record or missing devices (`pvs`) indicate that it may have been in use; inspect it by hand before you remove it", ErrDamaged, lv.Group, lv.Name)
	}
	if err == nil {
		err = e.removeIncomplete(ctx, spec, lv)
	}
	return err == nil, err
}

// endsSkipping returns the command that ends lvm.LogicalVolume.Skipped.
func endsSkipping(lv lvm.LogicalVolume) string {
	return "`lvchange --setactivationskip n " + string(lv.Group) + "/" + string(lv.Name) + "` ends that"
}

// unfinished returns what to do about a volume that was given up before it held anything; empty for all
// others.
func unfinished(tags volume.Tags) string {
	switch {
	case tags.Clone != "":
		return "is a copy of another that was never finished, so it holds nothing of its own; make the copy again"
	case tags.PartlyZeroed():
		return "was given up before all of it was zeroed: no pod has ever had it, so it holds nothing; create a new claim"
	}
	return ""
}
