package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// List returns every flexlvm volume on this node. Volumes whose tags cannot be parsed have a Problem, and
// faulty directory pools are listed with theirs. Logical volumes without flexlvm's tag are ignored.
func (e *Engine) List(ctx context.Context) ([]inventory.Volume, error) {
	lvs, err := e.lvm.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	copied := copiedGroups(lvs)
	pools, lvs := splitPools(lvs)
	all, err := e.describeAll(ctx, lvs, copied)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		seen := e.observePool(ctx, p)
		seen.explainCopiedGroups(copied[p.UUID])
		all = append(all, seen.volumes...)
		if pool, ill := seen.problemEntry(p); ill {
			all = append(all, pool)
		}
	}
	return all, nil
}

// describeAll describes volumes, and which of them exist in several groups (copiedGroups).
func (e *Engine) describeAll(ctx context.Context, lvs []lvm.LogicalVolume, copied map[string][]volume.Group) ([]inventory.Volume, error) {
	mounted, err := mount.ByDevice()
	if err != nil {
		return nil, err
	}
	trimmed, err := e.readTrimmed()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).Warn("the record of trim times cannot be read")
	}
	outdated := e.outdatedCopies(ctx, lvs)
	all := make([]inventory.Volume, 0, len(lvs))
	for _, lv := range lvs {
		v := e.describe(lv)
		e.explainCopies(&v, lv, outdated[lv.ID()])
		v.LastTrimmed = trimmed.Volumes[lv.UUID]
		if v.Mounts, err = mountsOf(lv, mounted); err != nil && v.Problem == "" {
			v.Problem = err.Error()
		}
		explainGoneDisk(&v, lv, func() (string, error) { return goneDiskOf(lv) })
		explainCopiedGroups(&v, copied[lv.UUID])
		all = append(all, v)
	}
	return all, nil
}

func (e *Engine) describe(lv lvm.LogicalVolume) inventory.Volume {
	v := inventory.Volume{
		Group: lv.Group, GroupUUID: lv.GroupUUID, Name: lv.Name, UUID: lv.UUID,
		Allocated: lv.Takes(), AllocatedWhenFull: lv.Shape.Takes(lv.Size, lv.Extent), Shape: lv.Shape, ByDevice: lv.On, SyncPercent: lv.Sync, Created: lv.Created, LastUsed: e.records.lastUsed(lv.Group, lv.Name),
		Active: lv.Active, Open: lv.Open, HasSnapshots: lv.HasSnapshots, SnapshotOf: lv.Origin, Stored: lv.Stored, Overflowed: e.wasInvalid(lv),
	}
	if v.LastUsed.IsZero() {
		v.LastUsed = lv.Created
	}
	v.Released = v.LastUsed
	rec, recErr := e.records.read(lv.Group, lv.Name.Undoomed())
	if recErr == nil && rec.VolumeUUID == lv.UUID && !rec.Since.IsZero() {
		v.Released = rec.Since
	}
	t, err := volume.ParseTags(lv.Tags)
	if err != nil {
		v.Problem, v.Unknown = err.Error(), errors.Is(err, volume.ErrUnknown)
		return v
	}
	v.State, v.Size, v.Namespace, v.Cluster, v.Kind, v.FS = t.State, t.Size, t.Namespace, t.Cluster, t.Kind, t.FS
	v.Reclaim, v.Wipe, v.CloneOfFS, v.Fill, v.Encrypted, v.FSType = t.Reclaim, t.Wipe, t.Clone, t.Fill, t.LUKS != "", t.FSType
	v.PartlyZeroed = t.PartlyZeroed()
	if lv.Name.IsDoomed() {
		v.State = volume.Doomed
	}
	v.Problem, v.Degraded = healthProblem(lv, isGivenUp(v.State))
	if v.Problem == "" && t.Adopting {
		v.Problem = "its adoption is not finished; call `flexlvm volumes adopt` again"
	}
	if v.Problem == "" && v.State == volume.Unreferenced && recErr != nil && !errors.Is(recErr, os.ErrNotExist) {
		// Its release time, which eviction goes by, is unknown, so the volume must not look old.
		v.Problem = recErr.Error() + "; remove that file, and the time that its logical volume was made counts"
	}
	if !lv.Active && t.State == volume.Ready {
		v.Problem = inactiveProblem(lv, v.Problem)
	}
	return v
}

// inactiveProblem returns the problem of an inactive volume that is ready. problem is what else is wrong with it, which
// its next mount may not repair.
func inactiveProblem(lv lvm.LogicalVolume, problem string) string {
	if lv.Skipped {
		return "inactive, and LVM skips its activation; " + endsSkipping(lv)
	}
	return cmp.Or(problem, "inactive; its next mount activates it")
}

// isGivenUp reports whether nobody needs the data of a volume in this state.
func isGivenUp(s volume.State) bool { return s == volume.Unreferenced || s == volume.Doomed }

// explainCopies adds to the description of a volume what its note of copies says. unusable is why it must not
// be used because of that. LVM reports no problem of a volume with a copy that is still being rebuilt (isRebuilding).
func (e *Engine) explainCopies(v *inventory.Volume, lv lvm.LogicalVolume, unusable error) {
	switch {
	case v.State == "":
	case unusable != nil && !isGivenUp(v.State):
		v.Problem, v.Degraded, v.Outdated = unusable.Error(), false, true
	case v.Layout == volume.Raid1 && v.Problem == "" && !isGivenUp(v.State) && e.isRebuilding(lv):
		v.Problem, v.Degraded = fmt.Sprintf("degraded: a copy is not complete yet (%s%% in sync); it can still be used. Keep all its disks until `lvs -o +sync_percent %s/%s` shows 100",
			cmp.Or(v.SyncPercent, "an unknown "), v.Group, v.Name), true
	case v.Layout == volume.Raid1 && v.Problem != "" && e.copyNotes.mayExist(v.UUID):
		v.Problem += fmt.Sprintf("; %s records which copies are out of date: read docs/disk-loss.md#a-copy-that-is-out-of-date before you refresh or repair it", e.copyNotes.file(v.UUID))
	}
}

// isRebuilding reports whether a raid1 volume has a copy that is not complete yet. Without a note, only LVM's sync action
// shows that, as after a person has replaced a copy (`lvconvert --replace`): any other sync is the volume's first, or the
// first of what it has grown by, and is no problem. With a note, any sync may be that of a copy, because a volume that
// grows while a copy is rebuilt has the action of the growth.
func (e *Engine) isRebuilding(lv lvm.LogicalVolume) bool {
	return lv.Active && lv.Sync != inSyncPercent && (lv.SyncAction == lvm.SyncRecover || e.copyNotes.mayExist(lv.UUID))
}

// outdatedCopies returns, by ID, why volumes must not be used because of their notes (checkNote, checkConverted). It
// queries LVM only if there are notes of raid1 volumes.
func (e *Engine) outdatedCopies(ctx context.Context, lvs []lvm.LogicalVolume) map[string]error {
	errs := map[string]error{}
	var mirrors []lvm.LogicalVolume
	for _, lv := range lvs {
		switch {
		case lv.Shape.Layout != volume.Raid1:
			errs[lv.ID()] = e.checkConverted(lv)
		case e.copyNotes.mayExist(lv.UUID):
			mirrors = append(mirrors, lv)
		}
	}
	if len(mirrors) == 0 {
		return errs
	}
	all, err := e.lvm.Copies(ctx, "")
	for _, lv := range mirrors {
		if err != nil {
			errs[lv.ID()] = fmt.Errorf("whether its copies are up to date is unknown: %w", err)
			continue
		}
		copies, err := all.Of(lv)
		if err == nil {
			err = e.checkNote(ctx, lv, copies)
		}
		errs[lv.ID()] = err
	}
	return errs
}

// healthProblem returns LVM's report of what is wrong with a volume. A volume with several copies stays usable
// while one copy is whole. flexlvm repairs nothing by itself, because the right repair depends on whether the
// disk comes back. LVM also reports a problem of an intact volume if only the store of one of its copy-on-write
// snapshots is on a missing disk. Copies that differ matter only while somebody needs the data.
func healthProblem(lv lvm.LogicalVolume, unneeded bool) (problem string, degraded bool) {
	mirror := lv.Shape.Layout == volume.Raid1
	switch {
	case lv.Health == "" || lv.Health == mismatches && unneeded:
		return "", false
	case lv.Health == mismatches:
		return fmt.Sprintf("degraded: its copies were found to differ (LVM says %q); it can still be used. Back it up, then run `lvchange --syncaction repair %s/%s`, which overwrites the others with its first copy that can be read: see docs/disk-loss.md#copies-that-differ",
			lv.Health, lv.Group, lv.Name), true
	case lv.HasSnapshots:
		return fmt.Sprintf("LVM says %q of it or of the store of one of its snapshots: `lvs -a -o lv_name,lv_uuid,origin,devices %s` shows which; if only a snapshot is on a missing disk, the volume is intact: remove nothing before you have read docs/disk-loss.md#the-disk-is-dead", lv.Health, lv.Group), mirror
	case mirror:
		return fmt.Sprintf("degraded: LVM says %q of its %d copies; it can still be used. Bring the disk back%s and run `lvchange --refresh %s/%s`, or replace it and run `lvconvert --repair %s/%s`",
			lv.Health, lv.Shape.Devices(), restoreMissing(lv.Group), lv.Group, lv.Name, lv.Group, lv.Name), true
	}
	return fmt.Sprintf("LVM says %q of it: check `lvs -o +lv_health_status,devices %s` and `pvs`", lv.Health, lv.Group), false
}

// restoreMissing returns what else to do about a disk that is back. LVM marks a missing disk as such when it writes the
// group's metadata, and does not use the disk before a person has removed that mark.
func restoreMissing(g volume.Group) string {
	return fmt.Sprintf(" (if `pvs -o +pv_missing` still shows a disk that is back as missing: `vgextend --restoremissing %s DEVICE`)", g)
}

func mountsOf(lv lvm.LogicalVolume, mounted map[uint64][]mount.Point) ([]string, error) {
	d, err := lvm.FindDevice(lv.Group, lv.Name)
	if errors.Is(err, lvm.ErrNoDevice) && !lv.Active {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	points, err := mountsOn(d, mounted)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range points {
		paths = append(paths, p.Path)
	}
	return paths, nil
}
