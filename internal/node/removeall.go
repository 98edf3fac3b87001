package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// RemoveAll removes several unreferenced volumes, and returns an error or nil for each. It
// does to every one what Remove does, and what is refused keeps no other from being removed.
// One that comes into use after it was examined may keep those that go with it until they
// are removed alone. Those of a group that need no wiping are tagged together and removed
// together: five LVM commands for six volumes, where Remove takes eleven for each. Those of sweepDoomed
// come on top, once for a group.
//
// Killed at any instant, it leaves each volume unreferenced, doomed or gone; the next call of
// either goes on from there.
func (e *Engine) RemoveAll(ctx context.Context, refs []Ref) []error {
	errs := make([]error, len(refs))
	left := make([]int, 0, len(refs))
	groups := map[volume.Group][]int{}
	for i, ref := range refs {
		if ref.DirectoryPool != "" { // LVM knows nothing of it
			left = append(left, i)
			continue
		}
		groups[ref.Group] = append(groups[ref.Group], i)
	}
	for g, these := range groups {
		if len(these) == 1 {
			left = append(left, these[0])
			continue
		}
		left = append(left, e.removeBatch(ctx, g, refs, these, errs)...)
	}
	slices.Sort(left)
	for _, i := range left {
		errs[i] = e.Remove(ctx, refs[i])
	}
	return errs
}

// A batchItem is a volume that is removed together with others.
type batchItem struct {
	at   int // in the refs
	lv   lvm.LogicalVolume
	tags volume.Tags
}

// removeBatch removes volumes of one group together, those of refs whose places are in
// these. It returns the places of what is to be removed alone.
func (e *Engine) removeBatch(ctx context.Context, g volume.Group, refs []Ref, these []int, errs []error) (alone []int) {
	var locked []int
	for _, i := range these {
		file, key := volumeLock(g, refs[i].Name)
		release, acquired, err := e.locks.Try(file, key)
		if err != nil || !acquired {
			alone = append(alone, i) // locked by another call, for which Remove waits
			continue
		}
		defer release()
		locked = append(locked, i)
	}
	seen, err := e.lvm.Everything(ctx)
	if err != nil {
		return append(alone, locked...)
	}
	var batch []batchItem
	for _, i := range locked {
		one, joins, err := examine(refs[i], seen)
		switch {
		case err != nil:
			errs[i] = err
		case joins:
			one.at = i
			batch = append(batch, one)
		default:
			alone = append(alone, i)
		}
	}
	if len(batch) == 0 {
		return alone
	}
	e.commit(ctx, g, refs, batch, errs)
	return alone
}

// examine decides of a volume whether it may go, by the rules of doom, and whether it joins
// a batch: one joins that LVM shows, that needs no wiping, and that is not in a thin pool.
func examine(ref Ref, seen lvm.Overview) (one batchItem, joins bool, err error) {
	at := slices.IndexFunc(seen.Volumes, func(lv lvm.LogicalVolume) bool {
		return lv.Group == ref.Group && lv.UUID == ref.UUID && lv.Name == ref.Name
	})
	whole := slices.ContainsFunc(seen.Groups, func(g lvm.VolumeGroup) bool {
		return g.Name == ref.Group && g.Missing == 0 && !g.Exported
	})
	if at < 0 || !whole {
		return one, false, nil
	}
	one.lv = seen.Volumes[at]
	if one.tags, err = ours(one.lv); err != nil {
		return one, false, err
	}
	if one.tags.Cluster != ref.Cluster {
		return one, false, refused("volume %s was made for cluster %q, not for %q", ref, one.tags.Cluster, ref.Cluster)
	}
	if err := mayDoom(ref, one.lv, one.tags); err != nil {
		return one, false, err
	}
	return one, one.lv.Shape.Layout != volume.Thin && one.tags.Wipe == volume.WipeNone, nil
}

// mayDoom says why a volume may not be removed, or nothing. One that is doomed already may.
func mayDoom(ref Ref, lv lvm.LogicalVolume, tags volume.Tags) error {
	switch {
	case tags.State != volume.Doomed && !volume.MayMove(tags.State, volume.Doomed, volume.ByEngine):
		return refused("volume %s is %s; only an unreferenced volume is removed", ref, tags.State)
	case lv.Origin:
		return hasSnapshots(ref)
	case lv.Open:
		return inUse(ref, lv)
	}
	return nil
}

func inUse(ref Ref, lv lvm.LogicalVolume) error {
	return fmt.Errorf("remove volume %s: %w: %s; it is tried again", ref, ErrInUse, held(lv))
}

// held says how a volume is in use.
func held(lv lvm.LogicalVolume) string {
	if lv.Shape.Layout == volume.Directory {
		return "it is mounted on this node, be it for one process alone"
	}
	return "its device is open on this node"
}

// commit dooms a batch, removes it, and looks what has become of it.
func (e *Engine) commit(ctx context.Context, g volume.Group, refs []Ref, batch []batchItem, errs []error) {
	e.sweepDoomed(ctx, g)
	batch = slices.DeleteFunc(batch, func(one batchItem) bool {
		if one.tags.State == volume.Doomed || one.lv.Name.IsDoomed() {
			return false // it is off the record, and its name may be another's by now
		}
		if err := e.buryRecord(refs[one.at], one.tags.Kind); err != nil {
			errs[one.at] = err
			return true
		}
		e.after("remove record")
		return false
	})
	if len(batch) == 0 {
		return
	}
	lvs := make([]lvm.LogicalVolume, 0, len(batch))
	for _, one := range batch {
		lvs = append(lvs, one.lv)
	}
	err := e.lvm.Doom(ctx, g, lvs)
	if err == nil { // or that may not last, and the volume come back without its data
		e.after("tag doomed")
		err = e.lvm.RemoveDoomed(ctx, g, lvs)
		e.after("lvremove")
	}
	left, lookErr := e.lvm.Left(ctx, lvs)
	for _, one := range batch {
		errs[one.at] = outcome(refs[one.at], one, left, lookErr, err)
		if errs[one.at] == nil && one.lv.Name.IsDoomed() {
			errs[one.at] = e.records.remove(g, one.lv.Name)
		}
	}
	e.announceRoom()
}

// outcome is nil if a volume of a batch is proved to be gone: LVM was asked what is left,
// and has shown all but it. Whether the removal failed counts for nothing then.
func outcome(ref Ref, one batchItem, left []lvm.LogicalVolume, lookErr, failed error) error {
	if lookErr != nil {
		return errors.Join(fmt.Errorf("remove volume %s: LVM does not show that it is gone: %w", ref, lookErr), failed)
	}
	at := slices.IndexFunc(left, func(lv lvm.LogicalVolume) bool { return lv.UUID == one.lv.UUID })
	switch {
	case at < 0:
		return nil
	case left[at].Origin: // since it was examined
		return hasSnapshots(ref)
	case left[at].Open:
		return inUse(ref, left[at])
	case failed == nil:
		return fmt.Errorf("remove volume %s: it is still there and LVM gave no reason", ref)
	}
	return fmt.Errorf("remove volume %s: it is still there: %w", ref, failed)
}
