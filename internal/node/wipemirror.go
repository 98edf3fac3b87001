package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// activateToWipe activates a volume whose data nobody needs. A copy that is out of date is wiped like any other. A
// raid1 volume is activated only with all copies: a missing one would not be wiped.
func (e *Engine) activateToWipe(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Raid1 {
		return e.activate(ctx, lv)
	}
	incompleteErr := e.lvm.ActivateComplete(ctx, lv)
	if incompleteErr == nil {
		return nil
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return errors.Join(incompleteErr, err)
	}
	if len(usableCopies(copies)) == len(copies) {
		return incompleteErr
	}
	return e.unwipedErr(ctx, lv, copies)
}

// unwipedErr returns the error for a volume that cannot be wiped because some of its copies cannot be used.
func (e *Engine) unwipedErr(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy) error {
	var unusable []lvm.Copy
	for _, c := range copies {
		if !isUsable(c) {
			unusable = append(unusable, c)
		}
	}
	what := "a copy"
	if len(unusable) > 0 {
		what = "copy " + namesOf(unusable)
	}
	return fmt.Errorf("%w: %s of volume %s/%s cannot be used, and the volume is not removed before all its copies are wiped (missing devices: %s): bring its disk back and run `lvchange --refresh %s/%s`; or give that copy up without wiping it, as docs/node-loss.md#the-disk-is-dead says",
		lvm.ErrPartial, what, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), lv.Group, lv.Name)
}
