package node

import (
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
	pools, lvs := splitPools(lvs)
	all, err := e.describeAll(lvs)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		seen := e.observePool(ctx, p)
		all = append(all, seen.volumes...)
		if pool, ill := seen.problemEntry(p); ill {
			all = append(all, pool)
		}
	}
	return all, nil
}

func (e *Engine) describeAll(lvs []lvm.LogicalVolume) ([]inventory.Volume, error) {
	mounted, err := mount.ByDevice()
	if err != nil {
		return nil, err
	}
	trimmed, err := e.readTrimmed()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).Warn("when volumes were trimmed is not known")
	}
	all := make([]inventory.Volume, 0, len(lvs))
	for _, lv := range lvs {
		v := e.describe(lv)
		v.LastTrimmed = trimmed.Volumes[lv.UUID]
		if v.Mounts, err = mountsOf(lv, mounted); err != nil && v.Problem == "" {
			v.Problem = err.Error()
		}
		all = append(all, v)
	}
	return all, nil
}

func (e *Engine) describe(lv lvm.LogicalVolume) inventory.Volume {
	v := inventory.Volume{
		Group: lv.Group, GroupUUID: lv.GroupUUID, Name: lv.Name, UUID: lv.UUID,
		Device: lv.Takes(), Full: lv.Shape.Takes(lv.Size, lv.Extent), Shape: lv.Shape, ByDevice: lv.On, SyncPercent: lv.Sync, Created: lv.Created, LastUsed: e.records.lastUsed(lv.Group, lv.Name),
		Active: lv.Active, Open: lv.Open, Origin: lv.Origin, SnapshotOf: lv.Of, Stored: lv.Stored, Overflowed: lv.Overflowed,
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
	v.HalfZeroed = t.PartlyZeroed()
	if lv.Name.IsDoomed() {
		v.State = volume.Doomed
	}
	v.Problem, v.Degraded = healthProblem(lv)
	if v.Problem == "" && t.Adopting {
		v.Problem = "its adoption is not finished; call `flexlvm volumes adopt` again"
	}
	if v.Problem == "" && v.State == volume.Unreferenced && recErr != nil && !errors.Is(recErr, os.ErrNotExist) {
		// Its release time, which eviction goes by, is unknown, so the volume must not look old.
		v.Problem = recErr.Error() + "; remove that file, and the time that its logical volume was made counts"
	}
	if !lv.Active && t.State == volume.Ready {
		v.Problem = "inactive; its next mount activates it"
		if lv.Skipped {
			v.Problem = "inactive, and LVM skips its activation; " + endsSkipping(lv)
		}
	}
	v.Problem = e.warnOfOldCopies(lv, v.Problem)
	return v
}

// warnOfOldCopies adds a warning to the problem of a raid1 volume if there is a note of its copies: a repair from
// a copy that is out of date would make the old data the only data.
func (e *Engine) warnOfOldCopies(lv lvm.LogicalVolume, problem string) string {
	if problem == "" || lv.Shape.Layout != volume.Raid1 || !e.copyNotes.exists(lv.UUID) {
		return problem
	}
	return fmt.Sprintf("%s; %s records which copies are out of date, and the volume is not mounted from such a copy alone: do not refresh or repair it before you have read docs/node-loss.md#a-copy-that-is-out-of-date",
		problem, e.copyNotes.file(lv.UUID))
}

// healthProblem returns LVM's report of what is wrong with a volume. A volume with several copies stays usable
// while one copy is whole. flexlvm repairs nothing by itself, because the right repair depends on whether the
// disk comes back.
func healthProblem(lv lvm.LogicalVolume) (problem string, degraded bool) {
	switch {
	case lv.Health == "":
		return "", false
	case lv.Shape.Layout == volume.Raid1:
		return fmt.Sprintf("degraded: LVM says %q of its %d copies; it can still be used. Bring the disk back and run `lvchange --refresh %s/%s`, or replace it and run `lvconvert --repair %s/%s`",
			lv.Health, lv.Shape.Devices(), lv.Group, lv.Name, lv.Group, lv.Name), true
	}
	return fmt.Sprintf("LVM says %q of it: look at `lvs -o +lv_health_status,devices %s` and `pvs`", lv.Health, lv.Group), false
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
