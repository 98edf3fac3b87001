package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// link creates a symbolic link to a directory of /sys.
func (h Host) link(t *testing.T, at, to string) {
	t.Helper()
	at = filepath.Join(h.Sys, at)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(h.Sys, to), at))
}

// A mapping names the disks that it is built on, also through other mappings.
func TestDeviceNamesWhatItIsBuiltOn(t *testing.T) {
	const sda, raid, secret = "devices/pci0/block/sda", "devices/virtual/block/md0", "devices/virtual/block/dm-0"
	h := host(t,
		sda+"/size=4096", sda+"/ro=0", sda+"/device/wwid=naa.1", sda+"/slaves/",
		sda+"/sda2/size=2048", sda+"/sda2/ro=0", sda+"/sda2/partition=2", sda+"/sda2/start=2048",
		"devices/pci0/block/sdb/device/wwid=naa.2",
		raid+"/size=2048", raid+"/ro=0", raid+"/md0p1/size=1024", raid+"/md0p1/ro=0", raid+"/md0p1/partition=1",
		secret+"/size=1024", secret+"/ro=0", secret+"/dm/name=data1", secret+"/dm/uuid=CRYPT-LUKS2-1-data1",
	)
	h.link(t, raid+"/slaves/sda2", sda+"/sda2")
	h.link(t, raid+"/slaves/sdb", "devices/pci0/block/sdb")
	h.link(t, secret+"/slaves/md0p1", raid+"/md0p1")
	for n, c := range []struct {
		dir   string
		start volume.Bytes
		under []string
	}{
		{sda, 0, nil}, {sda + "/sda2", volume.MiB, nil}, {raid, 0, []string{"naa.1-part2", "naa.2"}},
		{raid + "/md0p1", 0, []string{"naa.1-part2", "naa.2"}}, {secret, 0, []string{"naa.1-part2", "naa.2"}},
	} {
		h.link(t, "dev/block/8:"+string(rune('0'+n)), c.dir)
		d, err := h.Device(unix.Mkdev(8, uint32(n)))
		require.NoError(t, err)
		require.NoError(t, d.UnderUnknown, c.dir)
		require.Equal(t, c.under, d.Under, c.dir)
		require.Equal(t, c.start, d.Start, c.dir)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(h.Sys, "devices/pci0/block/sdb")))
	degraded, err := h.Device(unix.Mkdev(8, 4))
	require.NoError(t, err, "it works without that disk")
	require.ErrorContains(t, degraded.UnderUnknown, "block/sdb", "that it is on another disk as well must not be overlooked")
	require.Equal(t, []string{"naa.1-part2"}, degraded.Under)
}
