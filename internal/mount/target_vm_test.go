//go:build vm

package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A pod can move a directory that kubelet has mounted (subPath) arbitrarily deep. The mounts of the node remain
// readable.
func TestMountsBesideAVeryLongPath(t *testing.T) {
	dir := t.TempDir()
	moved, on, other := filepath.Join(dir, "moved"), filepath.Join(dir, "on"), filepath.Join(dir, "other")
	for _, d := range []string{moved, on, other} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	for _, target := range []string{on, other} {
		require.NoError(t, unix.Mount(moved, target, "", unix.MS_BIND, ""))
		t.Cleanup(func() { require.NoError(t, Unmount(target)) })
	}
	deep, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range 400 { // one path of that length is more than a call accepts
		name := strings.Repeat("d", 250)
		require.NoError(t, unix.Mkdirat(deep, name, 0o755))
		next, err := unix.Openat(deep, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(deep))
		deep = next
	}
	require.NoError(t, unix.Renameat(unix.AT_FDCWD, moved, deep, "moved"))
	require.NoError(t, unix.Close(deep))
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.Greater(t, len(table), 2*64<<10, "both lines are long")

	for _, target := range []string{on, other} {
		points, err := At(target)
		require.NoError(t, err)
		require.Len(t, points, 1)
	}
	_, err = ByDevice()
	require.NoError(t, err)
}
