//go:build vm

package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The growth of a raw block volume is killed after lvextend, and a snapshot with a small store is taken then. Zeroing
// the added part would overflow it, so the growth waits until the snapshot is gone.
func TestGrowthOfABlockVolumeSparesItsSnapshot(t *testing.T) {
	const size, larger = 32 * volume.MiB, 160 * volume.MiB
	m := newMachine(t)
	m.dirty()
	s := m.rawVolume("source", size)
	from, data := m.mountRaw(s, "a"), pattern("of the source ", size)
	writeDevice(t, from, 0, data)
	require.True(t, call{Dir: m.dir, Verb: "expand", Spec: s, Size: larger, Die: 1}.run(t), "lvextend")
	snap := m.storeOf(s, "snap", 5)
	m.snapshotNow(snap)
	writeDevice(t, from, 0, pattern("later ", volume.MiB))

	require.ErrorIs(t, m.growMounted(s.Group, s.Name, from, larger), lvm.ErrHasSnapshots)
	require.ErrorIs(t, m.Expand(m.ctx(), s, larger), lvm.ErrHasSnapshots)
	require.NoError(t, m.Expand(m.ctx(), s, size), "the growth was taken back")
	require.Equal(t, size, tagsOf(t, s.Name).Size)
	require.False(t, m.see(snap.Name).Overflowed)
	c := m.copyOf(snap, "copy", shapes[0], size)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	requireContent(t, m.mountRaw(c, "b"), size, data)
	m.unmount(m.file("b"))

	m.drop(snap, volume.WipeNone)
	require.NoError(t, m.growMounted(s.Group, s.Name, from, larger))
	requireContent(t, from, larger, append(pattern("later ", volume.MiB), data[volume.MiB:]...))
	m.unmount(from)
}
