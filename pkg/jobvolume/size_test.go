package jobvolume_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

func TestSize(t *testing.T) {
	v, err := jobvolume.New(t.TempDir(), 3)
	require.NoError(t, err)
	t.Setenv(jobvolume.EnvSize, "")
	require.NoError(t, v.CheckSize(), "nothing says how much")
	t.Setenv(jobvolume.EnvSize, "1Gi")
	_, err = jobvolume.Size()
	require.ErrorContains(t, err, `FLEXLVM_WORKER_SIZE is "1Gi"`)
	t.Setenv(jobvolume.EnvSize, "1048576")
	size, err := jobvolume.Size()
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, size)
	used, err := v.Used()
	require.NoError(t, err)
	require.Zero(t, used, "its directory is not made yet")

	dir, err := v.WorkerDir()
	require.NoError(t, err)
	file := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(file, make([]byte, 900<<10), 0o600))
	require.NoError(t, os.Link(file, filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "everything")))
	used, err = v.Used()
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, int64(900<<10))
	require.Less(t, used, int64(1<<20), "a file counts once, and no link is followed")
	require.NoError(t, v.CheckSize())

	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<30))
	require.NoError(t, sparse.Close())
	require.NoError(t, v.CheckSize(), "what was never written takes nothing")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c"), make([]byte, 200<<10), 0o600))
	err = v.CheckSize()
	require.ErrorIs(t, err, jobvolume.ErrTooLarge)
	require.ErrorContains(t, err, "worker-3 uses")
}
