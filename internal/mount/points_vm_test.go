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

// A pod creates the node of a device in a memory volume, and kubelet mounts it (subPath). The device is not mounted.
func TestNodeOnAnotherTmpfs(t *testing.T) {
	number := unix.Mkdev(7, 250) // of a loop device; the node is not opened
	dir := t.TempDir()
	memory, target := filepath.Join(dir, "memory"), filepath.Join(dir, "target")
	require.NoError(t, os.Mkdir(memory, 0o755))
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	require.NoError(t, unix.Mount("tmpfs", memory, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, Unmount(memory)) })
	node := filepath.Join(memory, "1")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(number)))
	require.NoError(t, unix.Mount(node, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, Unmount(target)) })

	mounted, err := ByDevice()
	require.NoError(t, err)
	require.Empty(t, mounted[number])
	points, err := At(target)
	require.NoError(t, err)
	require.Len(t, points, 1)
	require.Equal(t, "/1", points[0].Root)
}

// A node in /dev that is mounted, as a raw block volume is published, is a mount of its device.
func TestNodeInDev(t *testing.T) {
	number := unix.Mkdev(7, 251)
	node := "/dev/flexlvm-test-node"
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(number)))
	t.Cleanup(func() { require.NoError(t, os.Remove(node)) })
	target := filepath.Join(t.TempDir(), "target")
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	file, err := OpenFileTarget(target)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	attached, err := AttachNode(node, number)
	require.NoError(t, err)
	defer func() { _ = attached.Close() }()
	require.NoError(t, attached.MoveTo(file))
	t.Cleanup(func() { require.NoError(t, Unmount(target)) })

	mounted, err := ByDevice()
	require.NoError(t, err)
	require.Len(t, mounted[number], 1)
	require.Equal(t, target, mounted[number][0].Path)
}
