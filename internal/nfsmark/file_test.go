package nfsmark

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const name = "pvc-00000000-0000-0000-0000-000000000001"

func newExport(t *testing.T) (root *os.Root, marks string) {
	t.Helper()
	dir := t.TempDir()
	marks = filepath.Join(dir, Dir)
	require.NoError(t, os.Mkdir(marks, 0o700))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return root, marks
}

// traps are entries that a client of the server can create in the place of a mark. None of them is opened.
var traps = map[string]struct {
	put  func(file string) error
	want string
}{
	"a pipe":      {func(file string) error { return unix.Mkfifo(file, 0o600) }, "is not a plain file (p"},
	"a socket":    {func(file string) error { return unix.Mknod(file, unix.S_IFSOCK|0o600, 0) }, "is not a plain file (S"},
	"a directory": {func(file string) error { return os.Mkdir(file, 0o700) }, "is not a plain file (d"},
	"a link":      {func(file string) error { return os.Symlink("/dev/zero", file) }, "is not a plain file (L"},
	"a hole": {func(file string) error {
		return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<40))
	}, "is larger than 64 KiB"},
}

func TestTraps(t *testing.T) {
	want := Mark{Directory: "team-data-" + name, PersistentVolume: name, Claim: "team/data", Size: volume.MiB}
	for trap, tt := range traps {
		t.Run(trap, func(t *testing.T) {
			root, marks := newExport(t)
			require.NoError(t, tt.put(filepath.Join(marks, name)))
			_, _, err := Read(root, name)
			require.ErrorAs(t, err, new(*ForeignError))
			require.ErrorContains(t, err, tt.want)
			require.NoError(t, os.Remove(filepath.Join(marks, name)))

			require.NoError(t, tt.put(filepath.Join(marks, "."+name)))
			require.NoError(t, want.Write(root), "an unfinished one is replaced, never written into")
			m, marked, err := Read(root, name)
			require.NoError(t, err)
			require.True(t, marked)
			require.Equal(t, want, m)
			require.NoFileExists(t, filepath.Join(marks, "."+name))
		})
	}
}

// A file with another hard link is not written into.
func TestUnfinishedOfAnother(t *testing.T) {
	root, marks := newExport(t)
	precious := filepath.Join(marks, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("precious"), 0o600))
	require.NoError(t, os.Link(precious, filepath.Join(marks, "."+name)))
	require.NoError(t, WriteJSON(root, name, 1))
	content, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

// A failed write leaves nothing behind.
func TestUnfinishedIsRemoved(t *testing.T) {
	root, marks := newExport(t)
	require.NoError(t, os.MkdirAll(filepath.Join(marks, name, "in the way"), 0o700))
	require.Error(t, WriteJSON(root, name, 1))
	require.NoFileExists(t, filepath.Join(marks, "."+name))
}

func TestMarksThatSayNothing(t *testing.T) {
	root, marks := newExport(t)
	for _, content := range []string{"null", "{}", ` {"more": 1}`} {
		require.NoError(t, os.WriteFile(filepath.Join(marks, name), []byte(content), 0o600))
		_, marked, err := Read(root, name)
		require.ErrorContains(t, err, "says nothing", content)
		require.False(t, marked)
	}
}

func TestNames(t *testing.T) {
	root, marks := newExport(t)
	for _, file := range []string{name, "." + name, name + "~", ".projects", "pvc-1", "a\nline"} {
		require.NoError(t, os.WriteFile(filepath.Join(marks, file), nil, 0o600))
	}
	names, err := Names(root)
	require.NoError(t, err)
	require.Equal(t, []string{name}, names)
	require.NoError(t, os.RemoveAll(marks))
	require.NoError(t, unix.Mkfifo(marks, 0o700))
	_, err = Names(root)
	require.ErrorAs(t, err, new(*ForeignError))
}

// Opening a pipe instead of a directory would block forever.
func TestDirectoriesAlone(t *testing.T) {
	root, marks := newExport(t)
	pipe := filepath.Join(marks, "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	_, err := OpenDirectory(root, Dir+"/pipe")
	require.ErrorIs(t, err, unix.ENOTDIR)
	_, err = Enter(root, Dir+"/pipe")
	require.ErrorIs(t, err, unix.ENOTDIR)
	_, err = OpenRoot(pipe)
	require.ErrorIs(t, err, unix.ENOTDIR)
	inner, err := Enter(root, Dir)
	require.NoError(t, err)
	require.NoError(t, errors.Join(inner.WriteFile("file", nil, 0o600), inner.Close()))
	require.FileExists(t, filepath.Join(marks, "file"))
	outer, err := OpenRoot(filepath.Dir(marks))
	require.NoError(t, err)
	require.NoError(t, errors.Join(outer.Remove(Dir+"/file"), outer.Close()))
}
