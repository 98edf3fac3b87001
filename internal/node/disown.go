package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Disown takes flexlvm's tags off a volume that is retained and not in use (ErrInUse). Its
// logical volume stays with all that is on it, and is from then on like any other that a person
// has made. A volume in another state is refused: somebody may still have it.
//
// The record goes first, and leaves a tombstone, so that no call that is late makes an empty
// volume under the name. Killed in between, the volume is retained as before.
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
	if !slices.ContainsFunc(lv.Tags, volume.Ours) {
		return nil // a call that was killed has come to its end
	}
	tags, err := ours(lv)
	if err != nil {
		return err
	}
	if err := mayDisown(lv, tags); err != nil {
		return err
	}
	if err := e.records.bury(g, n, tags.Kind, e.now()); err != nil {
		return err
	}
	e.after("bury record")
	var tagged []string
	for _, tag := range lv.Tags {
		if volume.Ours(tag) {
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
	if slices.ContainsFunc(lv.Tags, volume.Ours) {
		return fmt.Errorf("disown volume %s/%s: LVM reported success, and the tags are still there; try again", g, n)
	}
	return nil
}

// mayDisown refuses what somebody may still have, and what is of no use to anybody else. It is
// pure.
func mayDisown(lv lvm.LogicalVolume, tags volume.Tags) error {
	where := string(lv.Group) + "/" + string(lv.Name)
	switch {
	case tags.Kind != volume.Claim:
		return refused("volume %s is of kind %s, which is of no use without what made it", where, tags.Kind)
	case tags.Clone != "":
		return refused("volume %s is a copy of another that was never finished, so it holds nothing of its own", where)
	case tags.State != volume.Retained:
		return refused("volume %s is %s: only one that is retained is disowned. Delete its claim and its PersistentVolume with the reclaim policy Retain, or keep it with `flexlvm volumes retain %s`", where, tags.State, lv.Name)
	case lv.Open:
		return fmt.Errorf("disown volume %s: %w: its device is open on this node; unmount it first", where, ErrInUse)
	}
	return nil
}
