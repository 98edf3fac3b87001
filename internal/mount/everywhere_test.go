package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Mounts of any process count, each namespace once; a process that ends meanwhile has none, and
// one that cannot be read leaves nobody to say that nothing is mounted.
func TestEverywhere(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, namespace, mounts string) {
		dir := filepath.Join(proc, pid, "ns")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.Symlink("mnt:["+namespace+"]", filepath.Join(dir, "mnt")))
		if mounts != "" {
			require.NoError(t, os.WriteFile(filepath.Join(proc, pid, "mountinfo"), []byte(mounts), 0o600))
		}
	}
	const (
		ours   = "36 35 252:3 /volumes/a/data /mnt rw,relatime - xfs /dev/dm-3 rw\n"
		others = "37 35 252:4 / /other rw,relatime - xfs /dev/dm-4 rw\n"
	)
	process("1", "1", others)
	process("2", "1", ours+ours) // of the same namespace as 1
	process("30", "2", others+ours)
	process("31", "3", "") // ends meanwhile
	process("32", "4", "40 35 252:3 /gone/b//deleted /x ro - xfs /dev/dm-3 rw\n")
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "33"), 0o700)) // has ended
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys"), 0o700))

	found, err := Everywhere(proc, unix.Mkdev(252, 3))
	require.NoError(t, err)
	require.Equal(t, []Point{
		{Path: "/mnt", Type: "xfs", Source: "/dev/dm-3", Number: unix.Mkdev(252, 3), Root: "/volumes/a/data"},
		{Path: "/x", Type: "xfs", Source: "/dev/dm-3", Number: unix.Mkdev(252, 3), Root: "/gone/b", ReadOnly: true},
	}, found)

	process("34", "5", "")
	require.NoError(t, os.Mkdir(filepath.Join(proc, "34", "mountinfo"), 0o700))
	_, err = Everywhere(proc, unix.Mkdev(252, 3))
	require.ErrorContains(t, err, "read the mounts of process 34")
	_, err = Everywhere(filepath.Join(proc, "none"), 0)
	require.ErrorContains(t, err, "list processes")
}
