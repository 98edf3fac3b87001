package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
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

	lvs := []lvm.LogicalVolume{w.lv, clone, other}
	all, err := w.describeAll(t.Context(), lvs, copiedGroups(lvs))
	require.NoError(t, err)
	const problem = "the volume groups clone, flexlvm each hold a volume with its UUID, so one is a copy of the other (vgimportclone): take flexlvm's tag off the volumes of the copy (`lvchange --deltag flexlvm COPY`)"
	require.Contains(t, all[0].Problem, problem)
	require.Contains(t, all[0].Problem, `degraded: LVM says "partial"`)
	require.False(t, all[0].Copied, "it has another problem")
	require.Contains(t, all[1].Problem, problem)
	require.NotContains(t, all[2].Problem, "vgimportclone")

	w.lv.Health = ""
	w.noteCopies(t.Context(), []lvm.LogicalVolume{w.lv, other}, w.now())
	require.False(t, w.copyNotes.mayExist(w.lv.UUID), "the copy is gone")
}

// The volumes of a directory pool exist in each copy of its group, although LVM shows only the pool.
func TestCopiedGroupWithADirectoryPool(t *testing.T) {
	e, g, _ := batchOfTwo(t, func(*fakeGroup) {})
	tags := volume.DirectoryPool{State: volume.Creating, FS: sourceTags().FS, Size: 64 * volume.MiB}
	pool := fakeLV{name: "dirs", uuid: "uuid-dirs", attr: "-wi-a-----", size: "67108864", tags: strings.Join(tags.Strings(), ",")}
	clone, second := pool, pool
	clone.group, second.group = "clone", "second"
	for says, lvs := range map[string][]fakeLV{
		"the volume groups clone, flexlvm each hold a volume with its UUID, so one is a copy of the other (vgimportclone)":     {pool, clone},
		"the volume groups clone, flexlvm, second each hold a volume with its UUID, so all but one are copies (vgimportclone)": {pool, clone, second},
	} {
		g.lvs = lvs
		in, err := e.Inventory(t.Context())
		require.NoError(t, err)
		listed, err := e.List(t.Context())
		require.NoError(t, err)
		require.Len(t, listed, len(lvs))
		require.Equal(t, volume.PoolName("flexlvm:dirs"), in.Pools[1].Name)
		require.Contains(t, in.Pools[1].Directories.Unfit, "it is not finished; call `flexlvm directories create --group flexlvm --pool dirs --size SIZE` again; "+says)
		for _, v := range listed {
			require.Contains(t, v.Problem, says)
		}
	}

	groups := []volume.Group{"clone", "flexlvm"}
	o := observedPool{pool: inventory.Pool{Directories: &inventory.DirectoryPool{}}, volumes: []inventory.Volume{{Name: "a"}, {Name: "b", Problem: "odd"}}}
	o.explainCopiedGroups(nil)
	require.Empty(t, o.volumes[0].Problem)
	o.explainCopiedGroups(groups)
	require.Contains(t, o.volumes[0].Problem, "the volume groups clone, flexlvm each hold a volume with its UUID")
	require.True(t, o.volumes[0].Copied)
	require.False(t, o.volumes[1].Copied)
	require.Contains(t, o.volumes[1].Problem, "odd; the volume groups clone, flexlvm")
	require.Empty(t, o.pool.Directories.Unfit, "the original takes volumes as before")
}
