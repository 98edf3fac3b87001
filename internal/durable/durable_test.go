package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplaceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "several", "new", "levels", "file")
	for _, text := range []string{"one, and long", "two"} {
		require.NoError(t, ReplaceFile(file, []byte(text)))
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	require.NoFileExists(t, file+".new")

	require.NoError(t, os.Mkdir(file+".new", 0o700)) // so writing the file fails
	require.Error(t, ReplaceFile(file, []byte("three")))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))
}

func TestReplaceJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, ReplaceJSON(file, map[string]int{"a": 1, "b": 2}))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "{\n  \"a\": 1,\n  \"b\": 2\n}\n", string(got))

	require.Error(t, ReplaceJSON(file, func() {}))
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, got, after)
}

// The parent of each directory that is created is synced.
func TestDirsToSync(t *testing.T) {
	root := t.TempDir()
	in := func(path string) string { return filepath.Join(root, path) }
	require.Equal(t, []string{in("a/b/c"), in("a/b"), in("a"), root}, dirsToSync(in("a/b/c")))
	require.NoError(t, os.MkdirAll(in("a/b"), 0o700))
	require.Equal(t, []string{in("a/b/c"), in("a/b")}, dirsToSync(in("a/b/c")))
	require.Equal(t, []string{in("a/b"), in("a")}, dirsToSync(in("a/b")))
}
