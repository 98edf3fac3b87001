package node

import (
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
	all, err := w.describeAll(w.t.Context(), []lvm.LogicalVolume{w.lv})
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
	problem, degraded := healthProblem(lv)
	require.True(t, degraded)
	require.Contains(t, problem, `LVM says "partial" of its 2 copies; it can still be used`)
	require.Contains(t, problem, "`vgextend --restoremissing flexlvm DEVICE`) and run `lvchange --refresh flexlvm/data`")
	lv.Origin = true
	for layout, want := range map[volume.Layout]bool{volume.Raid1: true, volume.Linear: false} {
		lv.Shape.Layout = layout
		problem, degraded = healthProblem(lv)
		require.Equal(t, want, degraded)
		require.Contains(t, problem, "or of the store of one of its snapshots")
		require.Contains(t, problem, "remove nothing before you have read docs/node-loss.md#the-disk-is-dead")
		require.NotContains(t, problem, "copies")
	}
}
