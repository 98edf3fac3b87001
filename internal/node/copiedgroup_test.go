package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A group and a copy of it (vgimportclone) have volumes with the same UUIDs. The complete copy of a degraded mirror
// must not remove its note, and both volumes have a problem, so that neither is evicted.
func TestCopiedGroup(t *testing.T) {
	w := watchMirror(t)
	w.look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
	w.lv.Tags = sourceTags().Strings()
	clone := w.lv
	clone.Group, clone.GroupUUID, clone.Health = "clone", "clone-uuid", ""
	other := lvm.LogicalVolume{Group: "flexlvm", Name: "other", UUID: "lv-2", Tags: w.lv.Tags, Shape: volume.Shape{Layout: volume.Linear}}
	w.health, w.whole, w.sync = [2]string{}, "", "100.00"
	w.noteCopies(t.Context(), []lvm.LogicalVolume{w.lv, clone, other}, w.now())
	require.Equal(t, []string{"data_rimage_0"}, w.behind())

	all, err := w.describeAll(t.Context(), []lvm.LogicalVolume{w.lv, clone, other})
	require.NoError(t, err)
	const problem = "the volume groups clone, flexlvm each hold a volume with its UUID, so one is a copy of the other (vgimportclone): take flexlvm's tag off the volumes of the copy (`lvchange --deltag flexlvm COPY`)"
	require.Contains(t, all[0].Problem, problem)
	require.Contains(t, all[0].Problem, `degraded: LVM says "partial"`)
	require.Contains(t, all[1].Problem, problem)
	require.NotContains(t, all[2].Problem, "vgimportclone")

	w.lv.Health = ""
	w.noteCopies(t.Context(), []lvm.LogicalVolume{w.lv, other}, w.now())
	require.False(t, w.copyNotes.mayExist(w.lv.UUID), "the copy is gone")
}
