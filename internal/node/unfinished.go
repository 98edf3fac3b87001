package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unfinished reports whether LVM has not finished making a volume, so that it is to be made anew.
// It is an error, and for a person to look at, where there is any record of the volume, or where
// it is not a new one that is asked for; and where devices of its group are missing, as the others
// may hold older metadata.
func (e *Engine) unfinished(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags) (bool, error) {
	unfinished, err := e.lvm.Unfinished(ctx, lv)
	if err != nil || !unfinished {
		return false, err
	}
	g, err := e.lvm.Group(ctx, lv.Group)
	if err != nil {
		return false, err
	}
	if g.Missing > 0 {
		return false, fmt.Errorf("LVM has not finished making %s/%s: %w: %s lacks %d of its %s; bring them back first", lv.Group, lv.Name, lvm.ErrPartial, g.Name, g.Missing, volume.Counted(g.Devices, "device", "devices"))
	}
	known, err := e.records.served(lv.Group, lv.Name)
	if err != nil || known || tags.State != volume.Creating || spec.FS != "" {
		return false, errors.Join(err, fmt.Errorf("%w: LVM has not finished making %s/%s, and its tags, its PersistentVolume or this node's record %s say that it was in use; a person must look", ErrDamaged, lv.Group, lv.Name, e.records.file(lv.Group, lv.Name)))
	}
	return true, nil
}
