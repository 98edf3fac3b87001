package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Disown removes flexlvm's tags from a volume that is retained and not in use (ErrInUse). Its logical volume
// stays with all its data, and is from then on like any other that a person has created. A volume in another
// state is refused: a pod may still use it.
//
// Disown writes the record first and keeps it: if the PersistentVolume lives on, no empty volume replaces
// this one, not even if its logical volume is renamed (ErrLost). Killed in between, it leaves the volume
// retained as before.
func (e *Engine) Disown(ctx context.Context, g volume.Group, n volume.Name) error {
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	lv, err := e.lvm.Volume(ctx, g, n)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(lv.Tags, volume.IsFlexlvmTag) {
		return e.lvm.Flush(ctx, g, n) // a killed call may have left the change in the disk's cache
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return err
	}
	if err := checkDisownable(lv, tags); err != nil {
		return err
	}
	if err := e.recordDisowned(lv, tags); err != nil {
		return err
	}
	var tagged []string
	for _, tag := range lv.Tags {
		if volume.IsFlexlvmTag(tag) {
			tagged = append(tagged, tag)
		}
	}
	if err := e.lvm.Retag(ctx, lv, tagged, nil); err != nil {
		return err
	}
	e.after("untag")
	if lv, err = e.lvm.Volume(ctx, g, n); err != nil {
		return err
	}
	if slices.ContainsFunc(lv.Tags, volume.IsFlexlvmTag) {
		return fmt.Errorf("disown volume %s/%s: LVM reported success, and the tags are still there; try again", g, n)
	}
	return nil
}

// recordDisowned writes a record that is not a tombstone, so that the volume permanently counts as one that
// this node has had.
func (e *Engine) recordDisowned(lv lvm.LogicalVolume, tags volume.Tags) error {
	rec := newRecord(lv.UUID, tags)
	rec.Since = e.now()
	return e.record(lv, rec)
}

// checkDisownable refuses a volume that a pod may still use, or that is of no use without flexlvm. It is pure.
func checkDisownable(lv lvm.LogicalVolume, tags volume.Tags) error {
	where := string(lv.Group) + "/" + string(lv.Name)
	switch {
	case tags.Kind != volume.Claim:
		return refused("volume %s is of kind %s, which is of no use without what made it", where, tags.Kind)
	case tags.Clone != "":
		return refused("volume %s is a copy of another that was never finished, so it holds nothing of its own", where)
	case tags.State == volume.Unreferenced:
		return refused("volume %s is %s: only one that is retained is disowned; keep it with `flexlvm volumes retain %s` first", where, tags.State, lv.Name)
	case tags.State != volume.Retained:
		return refused("volume %s is %s: only one that is retained is disowned. Delete its claim, and its PersistentVolume with the reclaim policy Retain", where, tags.State)
	case lv.Origin != "":
		return refused("volume %s is a snapshot of %s, and invalid once its store is full; copy its data to a volume of its own", where, lv.Origin)
	case lv.HasSnapshots:
		return refused("volume %s has copy-on-write snapshots, which would stay flexlvm's and go with it; delete their VolumeSnapshots first (`lvs -S 'origin=%s' %s` lists them)", where, lv.Name, lv.Group)
	case lv.Open:
		return fmt.Errorf("disown volume %s: %w: its device is open on this node; unmount it first", where, ErrInUse)
	}
	return nil
}
