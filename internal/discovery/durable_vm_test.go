//go:build vm

package discovery

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	utilsexec "k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/lvm"
)

// onLoop creates a loop device on a file, which holds what has reached the disk.
func onLoop(t *testing.T, file, size string) (device string) {
	t.Helper()
	device = shell(t, "truncate -s %[2]s %[1]s; losetup --show -f %[1]s", file, size)
	t.Cleanup(func() { shell(t, "losetup -d %s", device) })
	return device
}

// A person has deleted the files. The deletion must be on disk before the file system counts as empty:
// after a power cut the next tenant would have the files.
func TestMachineEmptyFilesystemLasts(t *testing.T) {
	base := t.TempDir()
	file, dir := filepath.Join(base, "file"), filepath.Join(base, "fast")
	at := filepath.Join(dir, "one")
	shell(t, "mkdir -p %[1]s %[2]s/copy; mkfs.ext4 -qF %[3]s; mount -o commit=300,noatime %[3]s %[1]s; echo x >%[1]s/data; sync", at, base, onLoop(t, file, "64M"))
	t.Cleanup(func() { shell(t, "umount %s", at) })
	f := found1(t, NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers), Class{Name: "fast", Directory: dir, Files: true})
	require.Error(t, checkEmpty(f, nil))
	onDisk := func() string {
		return shell(t, "cd %s; cp file cut; mount -o loop cut copy; ls copy; umount copy", base)
	}
	shell(t, "rm %s/data", at)
	require.Contains(t, onDisk(), "data", "it is not deleted on the disk")
	require.NoError(t, checkEmpty(f, nil))
	require.NotContains(t, onDisk(), "data")
}

// Reading makes the kernel write pending zeros, but only a flush writes them from the disk's own cache.
func TestMachineEmptyDeviceLasts(t *testing.T) {
	device := onLoop(t, filepath.Join(t.TempDir(), "file"), "64M")
	f := Found{Kind: Device, Path: device}
	write := func(b byte) {
		dev, err := os.OpenFile(device, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = dev.Write(bytes.Repeat([]byte{b}, 1<<20))
		require.NoError(t, err)
		require.NoError(t, dev.Close())
	}
	// Documentation/block/stat.rst: the 16th number counts flushes.
	flushes := func() string { return shell(t, "awk '{print $16}' /sys/class/block/%s/stat", filepath.Base(device)) }
	write('x')
	require.Error(t, checkEmpty(f, nil))
	write(0)
	before := flushes()
	require.NoError(t, checkEmpty(f, nil))
	require.NotEqual(t, before, flushes())
}
