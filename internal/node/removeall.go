package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// RemoveAll removes several unreferenced volumes as Remove does, and returns an error or nil for each. A
// refused volume does not prevent the removal of the others. A volume that comes into use after it was
// examined may fail the removal of its whole batch; its other volumes must then be removed alone. The volumes
// of a group that need no wiping are tagged together and removed together: five LVM commands for six volumes,
// where Remove takes eleven for each. The commands of removeRecordsOfGone come on top, once per group.
//
// Killed at any instant, it leaves each volume unreferenced, doomed or gone; the next call of either
// continues from there.
func (e *Engine) RemoveAll(ctx context.Context, refs []Ref) []error {
	errs := make([]error, len(refs))
	left := make([]int, 0, len(refs))
	groups := map[volume.Group][]int{}
	for i, ref := range refs {
		if ref.DirectoryPool != "" { // LVM does not know directory volumes
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

// removeBatch removes volumes of one group together: those at the indexes these of refs. It returns the
// indexes of the volumes that must be removed alone.
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
		one, joins, err := inspectForRemoval(refs[i], seen)
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
	e.commitBatch(ctx, g, refs, batch, errs)
	return alone
}

// inspectForRemoval decides by the rules of commitRemoval whether a volume may be removed, and whether it joins a
// batch. A volume joins if LVM shows it, it needs no wiping, and it is not in a thin pool.
func inspectForRemoval(ref Ref, seen lvm.Overview) (one batchItem, joins bool, err error) {
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
	if one.tags, err = ownedTags(one.lv); err != nil {
		return one, false, err
	}
	if one.tags.Cluster != ref.Cluster {
		return one, false, refused("volume %s was created for cluster %q, not for %q", ref, one.tags.Cluster, ref.Cluster)
	}
	if err := checkRemovable(ref, one.lv, one.tags); err != nil {
		return one, false, err
	}
	return one, one.lv.Shape.Layout != volume.Thin && one.tags.Wipe == volume.WipeNone, nil
}

// commitBatch dooms a batch, removes it, and looks up what is left of it.
func (e *Engine) commitBatch(ctx context.Context, g volume.Group, refs []Ref, batch []batchItem, errs []error) {
	e.removeRecordsOfGone(ctx, g)
	batch = slices.DeleteFunc(batch, func(one batchItem) bool {
		if one.tags.State == volume.Doomed || one.lv.Name.IsDoomed() {
			return false // it has no record any more, and another volume may have its name
		}
		if err := e.recordTombstone(refs[one.at], one.tags.Kind); err != nil {
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
	if err == nil { // otherwise the tags may not be durable, and a volume could come back without its data
		e.after("tag doomed")
		err = e.lvm.RemoveDoomed(ctx, g, lvs)
		e.after("lvremove")
	}
	left, lookErr := e.lvm.Left(ctx, lvs)
	for _, one := range batch {
		if errs[one.at] = outcome(refs[one.at], one, left, lookErr, err); errs[one.at] != nil {
			continue
		}
		errs[one.at] = e.removeNotes(one.lv.UUID)
		if one.lv.Name.IsDoomed() {
			errs[one.at] = errors.Join(errs[one.at], e.records.remove(g, one.lv.Name))
		}
	}
	e.signalRoomFreed()
}

// outcome returns nil if a volume of a batch is proved to be gone: LVM has listed what is left, without this
// volume. Then an error of the removal does not matter.
func outcome(ref Ref, one batchItem, left []lvm.LogicalVolume, lookErr, failed error) error {
	if lookErr != nil {
		return errors.Join(fmt.Errorf("remove volume %s: LVM does not show that it is gone: %w", ref, lookErr), failed)
	}
	at := slices.IndexFunc(left, func(lv lvm.LogicalVolume) bool { return lv.UUID == one.lv.UUID })
	switch {
	case at < 0:
		return nil
	case left[at].HasSnapshots: // since it was examined
		return hasSnapshotsErr(ref)
	case left[at].Open:
		return inUseErr(ref, left[at])
	case failed == nil:
		return fmt.Errorf("remove volume %s: it is still there and LVM gave no reason", ref)
	}
	return fmt.Errorf("remove volume %s: it is still there: %w", ref, failed)
}
