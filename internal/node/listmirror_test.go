package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// described returns the volume with these tags as the inventory describes it.
func (w *watchedMirror) described(tags volume.Tags) inventory.Volume {
	w.t.Helper()
	w.lv.Tags = tags.Strings()
	all, err := w.describeAll(w.t.Context(), []lvm.LogicalVolume{w.lv}, nil)
	require.NoError(w.t, err)
	return all[0]
}

// The inventory says of a volume that must not be used why, and never to refresh or repair it from an old copy.
func TestInventoryOfOutdatedCopies(t *testing.T) {
	w := watchMirror(t)
	tags := sourceTags()
	described := func() inventory.Volume { return w.described(tags) }
	records := w.copyNotes.file(w.lv.UUID) + " records which copies are out of date"
	w.look(true, "partial", "100.00", "partial", "")
	v := described()
	require.True(t, v.Degraded)
	require.False(t, v.Outdated)
	require.Contains(t, v.Problem, "it can still be used")
	require.Contains(t, v.Problem, records)

	w.look(false, "partial", "", "", "partial")
	v = described()
	require.False(t, v.Degraded)
	require.True(t, v.Outdated)
	require.Contains(t, v.Problem, "only copy data_rimage_0")
	require.NotContains(t, v.Problem, "its next mount activates it")
	w.look(true, "partial", "100.00", "", "partial")
	v = described()
	require.False(t, v.Degraded)
	require.True(t, v.Outdated)
	require.Contains(t, v.Problem, "copy data_rimage_0 of volume flexlvm/data is recorded as out of date")
	require.NotContains(t, v.Problem, "lvchange --refresh")
	tags.State = volume.Unreferenced
	v = described()
	require.True(t, v.Degraded, "nobody needs its data")
	require.False(t, v.Outdated)
	require.Contains(t, v.Problem, records)
	require.NoError(t, w.copyNotes.remove(w.lv.UUID))
	require.NotContains(t, described().Problem, "records")
}

// A volume that is no longer raid1 may consist of its old copy. Nobody needs the data of one that is given up.
func TestInventoryOfAConvertedMirror(t *testing.T) {
	w := watchMirror(t)
	tags := sourceTags()
	described := func() inventory.Volume { return w.described(tags) }
	w.look(true, "partial", "100.00", "partial", "")
	w.lv.Shape, w.lv.Health = volume.Shape{Layout: volume.Linear}, ""
	require.Contains(t, described().Problem, "volume flexlvm/data is no longer raid1")
	tags.State = volume.Unreferenced
	require.NotContains(t, described().Problem, "raid1")
	tags.State = volume.Ready
	require.NoError(t, w.copyNotes.remove(w.lv.UUID))
	require.NotContains(t, described().Problem, "raid1")
}

// LVM reports an intact volume as partial if only a snapshot's store is on a missing disk.
func TestHealthOfASourceOfSnapshots(t *testing.T) {
	lv := mirrorLV()
	lv.Health = "partial"
	problem, degraded := healthProblem(lv, false)
	require.True(t, degraded)
	require.Contains(t, problem, `LVM says "partial" of its 2 copies; it can still be used`)
	require.Contains(t, problem, "`vgextend --restoremissing flexlvm DEVICE`) and run `lvchange --refresh flexlvm/data`")
	lv.HasSnapshots = true
	for layout, want := range map[volume.Layout]bool{volume.Raid1: true, volume.Linear: false} {
		lv.Shape.Layout = layout
		problem, degraded = healthProblem(lv, false)
		require.Equal(t, want, degraded)
		require.Contains(t, problem, "or of the store of one of its snapshots")
		require.Contains(t, problem, "remove nothing before you have read docs/disk-loss.md#the-disk-is-dead")
		require.NotContains(t, problem, "copies")
	}
}

// noDevice is the problem of an active volume in tests, which have no devices.
const noDevice = "no such device: /dev/mapper/flexlvm-data"

// A mirror whose only complete copy is lost is lost, so one that is being rebuilt is degraded although LVM reports nothing.
// Its first sync is no problem. LVM tells the two apart, but not once the mirror has grown: then its note does.
func TestInventoryOfAMirrorBeingRebuilt(t *testing.T) {
	w := watchMirror(t)
	tags := sourceTags()
	described := func() inventory.Volume { return w.described(tags) }
	w.look(true, "", "12.34", "", "")
	for action, rebuilt := range map[string]bool{"": false, "resync": false, "idle": false, lvm.SyncRecover: true} {
		w.lv.SyncAction = action
		v := described()
		require.Equal(t, rebuilt, v.Degraded, action)
		require.Equal(t, rebuilt, strings.Contains(v.Problem, "degraded: a copy is not complete yet (12.34% in sync)"), action)
	}
	w.look(true, "", "100.00", "", "")
	w.lv.SyncAction = lvm.SyncRecover
	require.Equal(t, noDevice, described().Problem, "LVM reads the percentage and the action one after the other")
	w.lv.SyncAction = "resync"
	w.look(true, "partial", "100.00", "partial", "")
	w.uuids[0] = "copy-2"
	for sync, want := range map[string]string{"": "(an unknown % in sync)", "12.34": "(12.34% in sync)"} {
		w.look(true, "", sync, "", "")
		v := described()
		require.True(t, v.Degraded)
		require.False(t, v.Outdated)
		require.Contains(t, v.Problem, "degraded: a copy is not complete yet "+want)
		require.Contains(t, v.Problem, "it can still be used")
	}
	for _, tags.State = range []volume.State{volume.Unreferenced, volume.Doomed} {
		require.Equal(t, noDevice, described().Problem, "nobody needs its data, and it can be removed")
	}
	tags.State = volume.Ready
	w.look(true, "", "100.00", "", "")
	require.Equal(t, noDevice, described().Problem)
}

// The remedy of copies that differ is not the one of a lost disk. They do not prevent the removal of a volume.
func TestInventoryOfCopiesThatDiffer(t *testing.T) {
	w := watchMirror(t)
	tags := sourceTags()
	w.look(true, mismatches, "100.00", "", "")
	for _, w.lv.HasSnapshots = range []bool{false, true} {
		v := w.described(tags)
		require.True(t, v.Degraded)
		require.Contains(t, v.Problem, `its copies were found to differ (LVM says "mismatches exist"); it can still be used`)
		require.Contains(t, v.Problem, "`lvchange --syncaction repair flexlvm/data`")
		require.NotContains(t, v.Problem, "--refresh")
	}
	for _, tags.State = range []volume.State{volume.Unreferenced, volume.Doomed} {
		require.Equal(t, noDevice, w.described(tags).Problem)
	}
}

// A next mount activates an inactive volume, but does not repair what LVM reports of it.
func TestProblemOfAnInactiveVolume(t *testing.T) {
	e, _ := mirrorEngine(t)
	tags := sourceTags()
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "data", Shape: volume.Shape{Layout: volume.Linear}, Tags: tags.Strings()}
	require.Equal(t, "inactive; its next mount activates it", e.describe(lv).Problem)
	lv.Health = "partial"
	require.Contains(t, e.describe(lv).Problem, `LVM says "partial" of it`)
	lv.Skipped = true
	require.Contains(t, e.describe(lv).Problem, "LVM skips its activation")
}
