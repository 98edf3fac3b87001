package node

import (
	"context"
	"errors"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Heal repairs a volume that is needed after a boot or a crash: it activates a ready volume whose device is
// missing, and makes a volume ready that was handed out while its tags still say creating. An unreferenced
// volume that is active gets its device node, because without that nobody can tell whether it is mounted.
// Heal formats and removes nothing, and leaves to the next mount what that does anyway. It never waits: it
// skips a volume that another call has locked.
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
