//go:build vm

package node

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// written returns a value that changes when anything is written to a device: the kernel's counts of the
// sectors that were written or discarded, and a checksum of the beginning, which a person would check.
// Reading a whole volume would take a virtual node seconds. The counts restart when a device is activated:
// compare the content if it was inactive in between.
func (m *machine) written(device string) string {
	m.t.Helper()
	unix.Sync() // writes in the page cache are not counted yet
	f, err := os.Open(device)
	require.NoError(m.t, err)
	defer func() { require.NoError(m.t, f.Close()) }()
	first := sha256.New()
	_, err = io.CopyN(first, f, int64(4*volume.MiB))
	require.NoError(m.t, err)
	var st unix.Stat_t
	require.NoError(m.t, unix.Fstat(int(f.Fd()), &st))
	counts, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	require.NoError(m.t, err)
	of := strings.Fields(string(counts)) // as in Documentation/block/stat.rst
	return fmt.Sprintf("%s sectors written, %s discarded; first %x", of[6], of[13], first.Sum(nil))
}

// That nothing was written is only proved if a single sector is noticed, at any location and with any
// content, and reads are not.
func TestWritesAreNoticed(t *testing.T) { linearAndThin(t, testWritesAreNoticed) }

func testWritesAreNoticed(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	m.half(s, volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind})
	device := devicePath(s)
	ways := []string{
		"dd if=/dev/zero of=%[1]s bs=512 count=1 conv=notrunc status=none",
		"dd if=/dev/zero of=%[1]s bs=512 count=1 seek=$(($(blockdev --getsz %[1]s) - 1)) conv=notrunc status=none",
		"blkdiscard --zeroout --offset 32MiB --length 4KiB %[1]s",
	}
	if m.shape.Layout == volume.Thin { // it accepts discards even if the disk does not
		ways = append(ways, "blkdiscard --offset 32MiB --length 1MiB %[1]s")
	}
	for _, way := range ways {
		before := m.written(device)
		m.shell("blkid --probe %s || :", device)
		require.Equal(t, before, m.written(device), "reading")
		m.shell(way, device)
		require.NotEqual(t, before, m.written(device), way)
	}
}
