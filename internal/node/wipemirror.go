package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// syncTimeout is how long a wipe waits for the copies of a raid1 volume to be in sync. It suffices for a small
	// volume that was just created; a larger one is retried later.
	syncTimeout = 30 * time.Second
	syncPoll    = 500 * time.Millisecond
)

// ErrSyncing: a raid1 volume is not wiped yet, because its copies are not in sync. Nothing is to be done about that
// while they make progress.
var ErrSyncing = errors.New("its copies are still being synchronised")

// activateToWipe activates a volume whose data nobody needs. A copy that is out of date is wiped like any other. A
// raid1 volume is activated only with all copies: a missing one would not be wiped.
func (e *Engine) activateToWipe(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Raid1 {
		return e.lvm.Activate(ctx, lv)
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

// awaitInSync waits until all copies of an active raid1 volume are in use and in sync. It does nothing for other
// volumes. Sync alone does not suffice: a copy that has failed does not count in it.
func (e *Engine) awaitInSync(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Raid1 {
		return nil
	}
	for end := time.Now().Add(e.syncTimeout); ; {
		synced, err := e.allInSync(ctx, lv)
		if err != nil || synced {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("wipe volume %s/%s: %w, and one of them might be removed without being wiped; it is retried", lv.Group, lv.Name, ErrSyncing)
		}
		if err := pause.For(ctx, syncPoll); err != nil {
			return fmt.Errorf("wait until the copies of volume %s/%s are in sync: %w", lv.Group, lv.Name, err)
		}
	}
}

// allInSync reports whether all copies of an active raid1 volume are in sync. It fails if one of them is not in use.
func (e *Engine) allInSync(ctx context.Context, lv lvm.LogicalVolume) (bool, error) {
	now, err := e.lvm.Volume(ctx, lv.Group, lv.Name)
	switch {
	case err != nil:
		return false, err
	case now.UUID != lv.UUID || now.Shape != lv.Shape || !now.Active:
		return false, fmt.Errorf("wipe volume %s/%s: it has changed or was deactivated meanwhile; it is retried", lv.Group, lv.Name)
	case now.Health == "" || now.Health == mismatches:
		return now.Sync == inSyncPercent, nil
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return false, err
	}
	return false, e.unwipedErr(ctx, lv, copies)
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
	return fmt.Errorf("%w: %s of volume %s/%s cannot be used, and the volume is not removed before all its copies are wiped (missing devices: %s): bring its disk back%s and run `lvchange --refresh %s/%s`; or give that copy up without wiping it, as docs/disk-loss.md#the-disk-is-dead says",
		lvm.ErrPartial, what, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), restoreMissing(lv.Group), lv.Group, lv.Name)
}
