package nodeagent_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A copy of a volume group (vgimportclone) has volumes with the same UUIDs. The removal of one does not count for the
// other.
func TestRemovalInACopiedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("doomed_gone", volume.Doomed, 1)
	r.volume("copied", volume.Ready, 1)
	change := func(f func(*inventory.Volume)) {
		r.engine.with(func() {
			f(&r.engine.volumes[slices.IndexFunc(r.engine.volumes, func(v inventory.Volume) bool { return v.Name == "copied" })])
		})
	}
	change(func(v *inventory.Volume) { v.GroupUUID, v.UUID = "copy-uuid", "uuid-doomed_gone" })
	left := func(want ...string) func() bool {
		return func() bool { return slices.Equal(r.engine.names(), want) }
	}
	r.start()
	r.eventually(left("copied ready", "settled ready"), "the original stays")
	r.rounds(2)
	change(func(v *inventory.Volume) { v.Name, v.State = "doomed_copied", volume.Doomed })
	r.eventually(left("settled ready"), "the copy stays")
}

// While the original is being removed, the problem of its copy keeps the copy, although room is needed in its group.
func TestCopyStaysDuringTheRemovalOfItsOriginal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Policy.EvictOrphans = true
	r.claimed("big", 70)
	r.claimed("more", 5)
	r.volume("original", volume.Unreferenced, 20, evictiontest.LastUsed(100))
	r.volume("foreign", volume.Ready, 75, func(v *inventory.Volume) { v.Cluster = "another" })
	r.volume("copied", volume.Ready, 20, evictiontest.LastUsed(90))
	r.engine.with(func() {
		pool := r.engine.pools[0]
		pool.Name, pool.UUID, pool.Free, pool.LVs = "copy", "copy-uuid", 5*volume.GiB, 2
		r.engine.pools[0].Free, r.engine.pools[0].LVs = 4*volume.GiB, 4
		r.engine.pools = append(r.engine.pools, pool)
		for _, name := range []volume.Name{"foreign", "copied"} {
			v := r.engine.find(node.Ref{Group: "flexlvm"}, name)
			v.Group, v.GroupUUID = "copy", "copy-uuid"
		}
		v := r.engine.find(node.Ref{Group: "copy"}, "copied")
		v.UUID, v.Problem, v.Copied = "uuid-original", "it is a copy", true
	})
	r.engine.committing = make(chan struct{})
	r.start()
	r.eventually(func() bool { return len(r.engine.called("remove flexlvm/original")) == 1 }, "not removed")
	r.rounds(3)
	reported := func() bool {
		return slices.ContainsFunc(r.status().Orphans, func(o flexlvmv1.Orphan) bool { return o.Name == "copied" && o.Problem == "it is a copy" })
	}
	require.True(t, reported())
	close(r.engine.committing)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "original unreferenced") }, "left: %v", r.engine.names())
	r.rounds(3)
	require.Contains(t, r.engine.names(), "copied ready")
	require.Empty(t, r.engine.called("heal copy/copied"), "nothing is to be repaired")
}

// A copy and its original are repaired, and reported, each for itself.
func TestHealInACopiedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("original", volume.Ready, 1, func(v *inventory.Volume) { v.Active = false })
	r.volume("copied", volume.Ready, 1, func(v *inventory.Volume) { v.GroupUUID, v.UUID, v.Active = "copy-uuid", "uuid-original", false })
	r.start()
	for _, name := range []string{"original", "copied"} {
		r.eventually(func() bool { return len(r.engine.called("heal flexlvm/"+name)) == 1 }, "%s is not repaired", name)
	}
}
