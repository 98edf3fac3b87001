package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The mounts of all processes count, those of each view of a namespace once. A process that ends
// meanwhile has none. One that cannot be read is an error, because the device may be mounted there.
func TestEverywhere(t *testing.T) {
	proc := t.TempDir()
	thread := func(pid, tid, namespace, root, mounts string) {
		dir := filepath.Join(proc, pid, "task", tid)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "ns"), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(proc, "roots", root), 0o700))
		require.NoError(t, os.Symlink("mnt:["+namespace+"]", filepath.Join(dir, "ns/mnt")))
		require.NoError(t, os.Symlink(filepath.Join(proc, "roots", root), filepath.Join(dir, "root")))
		if mounts != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(mounts), 0o600))
		}
	}
	const (
		ours   = "36 35 252:3 /volumes/a/data /mnt rw,relatime - xfs /dev/dm-3 rw\n"
		others = "37 35 252:4 / /other rw,relatime - xfs /dev/dm-4 rw\n"
	)
	thread("1", "1", "1", "host", others)
	thread("2", "2", "1", "host", ours+ours)  // has the same view as 1
	thread("28", "28", "2", "chroot", others) // does not see all mounts that 30 sees
	thread("30", "30", "2", "c", others+ours)
	thread("31", "31", "3", "c", "") // ends meanwhile
	thread("32", "32", "1", "host", others)
	thread("32", "33", "4", "c", "40 35 252:3 /gone/b//deleted /x ro - xfs /dev/dm-3 rw\n") // a thread in a namespace of its own
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "33"), 0o700))                       // has ended
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys"), 0o700))

	found, err := Everywhere(proc, unix.Mkdev(252, 3))
	require.NoError(t, err)
	require.Equal(t, []Point{
		{Path: "/mnt", Type: "xfs", Source: "/dev/dm-3", Number: unix.Mkdev(252, 3), Root: "/volumes/a/data"},
		{Path: "/x", Type: "xfs", Source: "/dev/dm-3", Number: unix.Mkdev(252, 3), Root: "/gone/b", ReadOnly: true},
	}, found)

	// A tenant created mounts with long lines, of another device and of this one.
	long := strings.Repeat("/long", 20_000)
	thread("35", "35", "6", "c", strings.ReplaceAll(others, "/other", long)+strings.ReplaceAll(ours, "/mnt", long+`\040end`)+others)
	found, err = Everywhere(proc, unix.Mkdev(252, 3))
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, Point{Path: long + " end", Type: "xfs", Source: "/dev/dm-3", Number: unix.Mkdev(252, 3), Root: "/volumes/a/data"}, found[2])
	for _, wrong := range []string{"36 35\n", strings.TrimSuffix(ours, "\n"), strings.ReplaceAll(ours, " - ", " ")} {
		thread("36", "36", "7", "c", wrong)
		_, err = Everywhere(proc, unix.Mkdev(252, 3))
		require.ErrorContains(t, err, "read the mounts of process 36", wrong)
		require.NoError(t, os.RemoveAll(filepath.Join(proc, "36")))
	}

	thread("34", "34", "5", "c", "")
	require.NoError(t, os.Mkdir(filepath.Join(proc, "34/task/34/mountinfo"), 0o700))
	_, err = Everywhere(proc, unix.Mkdev(252, 3))
	require.ErrorContains(t, err, "read the mounts of process 34")
	_, err = Everywhere(filepath.Join(proc, "none"), 0)
	require.ErrorContains(t, err, "list processes")
}

// The lines of one device are bounded: beyond the bound, linesOf fails rather than skip a mount silently.
func TestLinesAreBounded(t *testing.T) {
	line := "36 35 252:3 / /" + strings.Repeat("x", maxLines/2) + " rw - xfs /dev/dm-3 rw\n"
	_, err := linesOf(strings.NewReader(line+line), unix.Mkdev(252, 3))
	require.ErrorContains(t, err, "the mounts of device 252:3 take more than")
	lines, err := linesOf(strings.NewReader(line+line+line), unix.Mkdev(252, 4))
	require.NoError(t, err)
	require.Empty(t, lines)
}
