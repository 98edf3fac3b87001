//go:build vm

package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A person has requested a volume through the API: it is brought back if it is exactly that volume, and
// nothing replaces it if it is gone.
func TestUndelete(t *testing.T) { linearAndThin(t, testUndelete) }

func testUndelete(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	ref, fs := refOf(s), tagsOf(t, s.Name).FS
	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))

	const another = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
	stranger, replaced := ref, ref
	stranger.Cluster, replaced.UUID = "another", "another"
	for _, meant := range []struct {
		ref Ref
		fs  string
	}{{ref, another}, {stranger, fs}, {replaced, fs}} {
		_, err := m.SetStateOf(m.ctx(), meant.ref, meant.fs, volume.Ready)
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, volume.Unreferenced, tagsOf(t, s.Name).State)
	}
	for range 2 {
		v, err := m.SetStateOf(m.ctx(), ref, fs, volume.Ready)
		require.NoError(t, err)
		require.Equal(t, volume.Ready, v.State)
	}

	back := s
	back.FS = another
	require.ErrorIs(t, m.tryMount(back, m.target("a")), ErrRefused)
	back.FS = fs
	require.FileExists(t, m.mount(back, "a")+"/f")
	m.unmount(target)

	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), ref))
	require.NoError(t, m.records.remove(s.Group, s.Name), "as if the tombstone's time were over")
	err := m.tryMount(back, m.target("a"))
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "an empty volume will not take its place: it was evicted before")
	_, err = m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
	_, err = m.SetStateOf(m.ctx(), ref, fs, volume.Ready)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
}
