package xfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestBoundRetries(t *testing.T) {
	sys := t.TempDir()
	device := unix.Mkdev(254, 3)
	require.ErrorContains(t, boundRetries(sys, device), "bound the retries of XFS")

	disk := filepath.Join(sys, "devices/virtual/block/dm-3")
	require.NoError(t, os.MkdirAll(disk, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755))
	require.NoError(t, os.Symlink(disk, filepath.Join(sys, "dev/block/254:3")))
	require.Error(t, boundRetries(sys, device), "a file system that is not mounted")

	kinds := []string{"ENOSPC", "EIO", "default"}
	file := func(kind string) string {
		return filepath.Join(sys, "fs/xfs/dm-3/error/metadata", kind, "max_retries")
	}
	for _, kind := range kinds {
		require.NoError(t, os.MkdirAll(filepath.Dir(file(kind)), 0o755))
		require.NoError(t, os.WriteFile(file(kind), []byte("-1\n"), 0o600))
	}
	for range 2 {
		require.NoError(t, boundRetries(sys, device))
		for _, kind := range kinds {
			b, err := os.ReadFile(file(kind))
			require.NoError(t, err)
			require.Equal(t, "5", string(b), kind)
		}
	}
}
