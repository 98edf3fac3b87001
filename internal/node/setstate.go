package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// SetState moves a volume to another state without asking the API server, at the request of a person.
//
//   - to Ready: from unreferenced or retained (undelete), so that it may be mounted.
//     That counts as a use: until its PersistentVolume exists, the volume is an orphan.
//   - to Retained: from ready or unreferenced; only a person removes it then.
//   - to Unreferenced: from creating, ready or retained (forget); its room may be reclaimed.
//
// A volume already in that state keeps it. A volume whose device is open cannot be forgotten (ErrInUse); a
// doomed one is refused.
func (e *Engine) SetState(ctx context.Context, g volume.Group, n volume.Name, to volume.State) (inventory.Volume, error) {
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return inventory.Volume{}, err
	}
	defer release()
	find := func() (lvm.LogicalVolume, error) { return e.lookUpByName(ctx, g, n) }
	return e.setState(ctx, g, n, to, find, func(lvm.LogicalVolume, volume.Tags) error { return nil })
}

// SetStateOf is SetState for exactly the volume that a person has named through the API: of the cluster of
// ref, with the UUID of ref if that is set, and with this file system. It waits for another call no longer
// than roundLockTimeout (ErrBusy).
func (e *Engine) SetStateOf(ctx context.Context, ref Ref, fs string, to volume.State) (inventory.Volume, error) {
	release, err := e.lockWithin(ctx, e.roundLockTimeout, ref.Group, ref.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	defer release()
	find := func() (lvm.LogicalVolume, error) { return e.volumeOf(ctx, ref, ref.Name) }
	return e.setState(ctx, ref.Group, ref.Name, to, find, func(lv lvm.LogicalVolume, tags volume.Tags) error {
		switch {
		case tags.Cluster != ref.Cluster:
			return refused("volume %s was created for cluster %q, not for %q", ref, tags.Cluster, ref.Cluster)
		case tags.FS != fs:
			return refused("volume %s holds the file system %s, and %s is meant", ref, tags.FS, fs)
		}
		return ref.checkUUID(lv)
	})
}

// setState changes the state of the volume that find returns, if check allows it. The caller holds the
// volume's lock.
func (e *Engine) setState(ctx context.Context, g volume.Group, n volume.Name, to volume.State, find func() (lvm.LogicalVolume, error), check func(lvm.LogicalVolume, volume.Tags) error) (inventory.Volume, error) {
	lv, err := find()
	if err != nil {
		return inventory.Volume{}, err
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return inventory.Volume{}, err
	}
	if err := check(lv, tags); err != nil {
		return inventory.Volume{}, err
	}
	if tags, err = e.ensureSettled(ctx, lv, tags); err != nil {
		return inventory.Volume{}, err
	}
	if err := checkStateChange(lv, tags, to); err != nil {
		return inventory.Volume{}, err
	}
	if tags.State != to {
		err = e.writeState(ctx, lv, tags, to)
	} else {
		err = e.flushTags(ctx, lv) // a killed call may have left the tags in the disk's cache
	}
	if err != nil {
		return inventory.Volume{}, err
	}
	if to == volume.Ready {
		// It counts as a use, durably; otherwise the volume might be evicted immediately.
		if err := e.records.touchDurably(g, n, e.now()); err != nil {
			return inventory.Volume{}, err
		}
	}
	if lv, err = find(); err != nil {
		return inventory.Volume{}, err
	}
	return e.describe(lv), nil
}

// checkStateChange refuses changes that a person may not make either.
func checkStateChange(lv lvm.LogicalVolume, tags volume.Tags, to volume.State) error {
	ref := Ref{Group: lv.Group, Name: lv.Name}
	switch {
	case to != volume.Ready && to != volume.Retained && to != volume.Unreferenced:
		return fmt.Errorf("change state of volume %s: state %s cannot be requested", ref, to)
	case tags.State == volume.Creating && to != volume.Unreferenced:
		return refused("volume %s is creating: no pod has ever mounted it, so it holds nothing; forget it if nobody needs it", ref)
	case tags.Adopting && to != volume.Retained:
		return refused("the adoption of volume %s is not finished: call `flexlvm volumes adopt` again, or `flexlvm volumes disown` to leave it as it was", ref)
	case to != volume.Unreferenced && unfinished(tags) != "":
		return refused("volume %s %s", ref, unfinished(tags))
	case tags.State == volume.Doomed:
		return refused("volume %s is being removed", ref)
	case tags.State != to && !volume.MayMove(tags.State, to, volume.ByPerson):
		return refused("volume %s is %s and cannot become %s", ref, tags.State, to)
	case to == volume.Unreferenced && lv.Open:
		return fmt.Errorf("forget volume %s: %w: %s; end the pods that use it first", ref, ErrInUse, describeUse(lv))
	}
	return nil
}
