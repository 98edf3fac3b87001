package lvm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseIOTime(t *testing.T) {
	// /sys/class/block/vda/stat of Linux 6.1.
	busy, err := parseIOTime("/dev/vda", "   22135     2377  1543842    13240    98123    54377  5532154   241820        0    97424   262316        0        0        0        0    12345     7255")
	require.NoError(t, err)
	require.Equal(t, 97424*time.Millisecond, busy)
	for _, line := range []string{"", "1 2 3", "1 2 3 4 5 6 7 8 9 x 11"} {
		_, err := parseIOTime("/dev/vda", line)
		require.ErrorContains(t, err, "read how busy /dev/vda is", line)
	}
	_, err = IOTime("/dev/there-is-no-such-disk")
	require.ErrorContains(t, err, "/dev/there-is-no-such-disk")
}

func TestThin(t *testing.T) {
	dir := t.TempDir()
	_, err := thin(dir)
	require.Error(t, err)
	stands := func(name, uuid string) {
		at := filepath.Join(dir, "slaves", name, "dm")
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(at, "uuid"), []byte(uuid+"\n"), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "slaves/sda"), 0o755))
	stands("dm-1", "LVM-x")
	is, err := thin(dir)
	require.NoError(t, err)
	require.False(t, is)
	stands("dm-2", "LVM-x-tpool")
	is, err = thin(dir)
	require.NoError(t, err)
	require.True(t, is)
}
