package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplaceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "file")
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
