package destination

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestPublishNewReplacesNothing(t *testing.T) {
	root := t.TempDir()
	d, err := Open(root)
	require.NoError(t, err)
	defer d.Close()
	file, err := d.Create("0/t", 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	top, err := d.OpenDir("")
	require.NoError(t, err)
	defer func() { require.NoError(t, top.Close()) }()

	there := filepath.Join(root, "there")
	require.NoError(t, os.WriteFile(there, []byte("of the user"), 0o600))
	require.ErrorIs(t, d.PublishNew("0/t", top, "there"), store.ErrInTheWay)
	from, err := d.TempSubdir("0")
	require.NoError(t, err)
	require.ErrorIs(t, linkNew(from, "t", top, "there"), unix.EEXIST)
	data, err := os.ReadFile(there)
	require.NoError(t, err)
	require.Equal(t, "of the user", string(data))

	require.NoError(t, d.PublishNew("0/t", top, "one"))
	require.FileExists(t, filepath.Join(root, "one"))
	require.NoError(t, os.Rename(filepath.Join(root, "one"), filepath.Join(root, TmpDir, "0/t")))
	require.NoError(t, linkNew(from, "t", top, "two"))
	require.FileExists(t, filepath.Join(root, "two"))
	require.NoFileExists(t, filepath.Join(root, TmpDir, "0/t"))
}
