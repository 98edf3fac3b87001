package lvm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A disk that is gone leaves a link to nothing in sysfs.
func TestGoneDisk(t *testing.T) {
	sys := t.TempDir()
	device := func(dir, name, uuid string) string {
		dir = filepath.Join(sys, dir)
		require.NoError(t, os.MkdirAll(dir+"/slaves", 0o755))
		require.NoError(t, os.MkdirAll(dir+"/dm", 0o755))
		require.NoError(t, os.WriteFile(dir+"/dm/name", []byte(name+"\n"), 0o600))
		require.NoError(t, os.WriteFile(dir+"/dm/uuid", []byte(uuid+"\n"), 0o600))
		return dir
	}
	gone := func(dir string) string {
		disk, err := goneDisk(dir)
		require.NoError(t, err)
		return disk
	}
	lost := func(dir string) { require.NoError(t, os.Symlink("../nothing", dir+"/slaves/sdb")) }

	linear := device("linear", "flexlvm-data", "LVM-a")
	require.NoError(t, os.MkdirAll(linear+"/slaves/sda", 0o755))
	require.Empty(t, gone(linear))
	lost(linear)
	require.Equal(t, "sdb", gone(linear))

	thin := device("thin", "flexlvm-thin", "LVM-a")
	device("thin/slaves/dm-1", "flexlvm-pool-tpool", "LVM-a-tpool")
	data := device("thin/slaves/dm-1/slaves/dm-2", "flexlvm-pool_tdata", "LVM-a-tdata")
	require.Empty(t, gone(thin))
	lost(data)
	require.Equal(t, "sdb", gone(thin))

	mirror := device("mirror", "flexlvm-m", "LVM-a")
	lost(device("mirror/slaves/dm-3", "flexlvm-m_rimage_0", "LVM-a"))
	lost(device("mirror/slaves/dm-4", "flexlvm-m_rmeta_0", "LVM-a"))
	require.Empty(t, gone(mirror), "the other copy works")

	paths := device("paths", "flexlvm-p", "LVM-a")
	lost(device("paths/slaves/dm-5", "mpatha", "mpath-a"))
	require.Empty(t, gone(paths), "another path works")

	_, err := goneDisk(filepath.Join(sys, "missing"))
	require.Error(t, err)
}
