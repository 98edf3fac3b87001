package jobvolume

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A directory of the image at /persistent is not a volume, and nothing is created in it.
func TestDirectoryOfTheImage(t *testing.T) {
	t.Setenv(EnvDir, "")
	t.Setenv(EnvWorker, "1")
	v, err := FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, Volume{dir: DefaultDir, worker: 1, mounted: true}, v)

	v.dir = t.TempDir()
	for _, ask := range []func() (string, error){v.JobDir, v.WorkerDir, v.LogFile} {
		_, err := ask()
		require.ErrorIs(t, err, ErrNoVolume)
	}
	there, err := v.JobDirExists()
	require.NoError(t, err)
	require.False(t, there)
	require.NoDirExists(t, v.WorkerDirPath())
	v.dir = "/proc" // mounted on every Linux system
	there, err = v.JobDirExists()
	require.NoError(t, err)
	require.True(t, there)

	named := filepath.Join(t.TempDir(), "named")
	require.NoError(t, os.Mkdir(named, 0o755))
	t.Setenv(EnvDir, named)
	v, err = FromEnvironment()
	require.NoError(t, err)
	_, err = v.WorkerDir()
	require.NoError(t, err, "one that is named may be any")
}

// Inodes that are seen only once, directories and files with one link, are counted without being remembered.
func TestUsage(t *testing.T) {
	var u usage
	for n := range uint64(1000) {
		u.add(&syscall.Stat_t{Ino: n, Nlink: 1, Blocks: 8}, false)
		u.add(&syscall.Stat_t{Ino: 1000 + n, Nlink: 3, Blocks: 8}, true)
	}
	require.Empty(t, u.seen)
	for range 2 {
		u.add(&syscall.Stat_t{Ino: 5000, Nlink: 2, Blocks: 8}, false)
	}
	require.Len(t, u.seen, 1)
	require.EqualValues(t, 2001*8*512, u.bytes)
}
