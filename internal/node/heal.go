package node

import (
	"context"
	"errors"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Heal repairs a volume that is wanted after a boot or a crash: a ready volume whose
// device is missing gets it, and one that was handed out while its tags still say
// creating becomes ready. An unreferenced volume that is active gets its device node,
// without which nobody can tell whether it is mounted. Heal formats nothing and removes
// nothing; what the next mount does anyway is left to the mount. It waits for nobody: a volume that
// another call is at work on is left to that.
func (e *Engine) Heal(ctx context.Context, ref Ref) error {
	release, acquired, err := e.locks.Try(volumeLock(ref.Group, ref.Name))
	if err != nil || !acquired {
		return err
	}
	defer release()
	lv, tags, err := e.lookUpOwned(ctx, ref, ref.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		return nil
	}
	if err != nil {
		return err
	}
	if tags, err = e.ensureSettled(ctx, lv, tags); err != nil {
		return err
	}
	wanted := tags.State == volume.Ready || tags.State == volume.Unreferenced && lv.Active
	if !wanted || lv.Shape.Layout == volume.Directory {
		return nil
	}
	_, err = e.activeDevice(ctx, lv)
	return err
}
