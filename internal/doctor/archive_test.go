package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only the sum of all regular files counts, whatever group they are of.
func TestArchive(t *testing.T) {
	p := healthy(t)
	check := func() Finding {
		t.Helper()
		found := New(p.cfg, p.host).checkArchive(t.Context())
		require.Len(t, found, 1)
		return found[0]
	}
	require.Equal(t, Finding{Level: OK, Check: "LVM's archive", Detail: "none"}, check())
	p.write(t, "etc/lvm/archive/flexlvm_00001-1.vg", "text")
	require.NoError(t, os.Mkdir(filepath.Join(p.root, archiveDir, "directory"), 0o750))
	require.Equal(t, Finding{Level: OK, Check: "LVM's archive", Detail: "1 file, 4 B"}, check())

	large := filepath.Join(p.root, archiveDir, "flexlvm_00002-2.vg")
	require.NoError(t, os.WriteFile(large, nil, 0o600))
	require.NoError(t, os.Truncate(large, int64(maxArchiveSize)), "a sparse file")
	got := check()
	require.Equal(t, Warn, got.Level)
	require.Contains(t, got.Detail, "more than 1 GiB in /etc/lvm/archive")
	require.Contains(t, got.Do, "lower retain_days")
	require.NoError(t, os.Remove(large))

	for i := range maxArchiveFiles {
		require.NoError(t, os.WriteFile(filepath.Join(p.root, archiveDir, fmt.Sprintf("flexlvm_1%05d-3.vg", i)), nil, 0o600))
	}
	got = check()
	require.Equal(t, Warn, got.Level)
	require.Contains(t, got.Detail, "more than 8192 files")
	require.NoError(t, os.RemoveAll(filepath.Join(p.root, archiveDir)))
	p.write(t, archiveDir, "a file")
	got = check()
	require.Equal(t, Warn, got.Level)
	require.Contains(t, got.Detail, "not a directory")
}
