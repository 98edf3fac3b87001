//go:build vm

package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/xfs"
)

// creating creates a volume whose tags say creating and that this node has no record of: either handed out,
// with data in it, or left unfinished by a killed mkfs.
func creating(m *machine, name string, published bool) volume.Spec {
	m.t.Helper()
	behind(m)
	s := m.volume(name, 64*volume.MiB)
	if !published {
		tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind}
		m.half(s, tags)
		d, err := lvm.FindDevice(s.Group, s.Name)
		require.NoError(m.t, err)
		require.NoError(m.t, xfs.Mkfs(m.ctx(), m.host.Killable, xfs.Format{Device: d.Path, UUID: tags.FS, Size: s.Size}))
		return s
	}
	target := m.mount(s, "a")
	require.NoError(m.t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	require.Equal(m.t, volume.Creating, tagsOf(m.t, s.Name).State)
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
	return s
}

// If tags, records and the superblock all say that a volume is new, the copies of its superblock may still
// show that it was in use.
func TestCopiesOfTheSuperblock(t *testing.T) { eachLayout(t, testCopiesOfTheSuperblock) }

func testCopiesOfTheSuperblock(t *testing.T, m *machine) {
	for name, damage := range map[string]string{
		"lost":      "dd if=/dev/zero of=%s bs=4k count=1 conv=notrunc,fsync status=none",
		"scribbled": "printf x | dd of=%s bs=1 seek=200 conv=notrunc,fsync status=none",
		"begun":     "printf '\\001' | dd of=%s bs=1 seek=126 conv=notrunc,fsync status=none",
	} {
		if name != "lost" && m.shape.Layout != volume.Linear {
			continue // layouts only differ in the location of the copies
		}
		served := creating(m, "served-"+name, true)
		m.shell(damage, devicePath(served))
		before := m.written(devicePath(served))
		err := m.tryMount(served, m.target("b"))
		require.ErrorIs(t, err, ErrDamaged, name)
		require.ErrorContains(t, err, "shows that it was in use", name)
		require.Equal(t, before, m.written(devicePath(served)), name)

		// The remains of a killed mkfs must not make a pod wait forever.
		half := creating(m, "half-"+name, false)
		m.shell(damage, devicePath(half))
		target := m.mount(half, "c")
		size, _, _ := df(t, target)
		require.Equal(t, half.Size, size, name)
		m.unmount(target)
		m.clear(served.Name)
		m.clear(half.Name)
	}
}
