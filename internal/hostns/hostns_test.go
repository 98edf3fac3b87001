package hostns

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The paths are in the order of the directories, even if one of them does not exist, and files that are created
// later are visible.
func TestDirectoriesAreCarried(t *testing.T) {
	token, certificate := t.TempDir(), t.TempDir()
	value, err := openDirs([]string{token, "/nowhere", certificate})
	require.NoError(t, err)
	paths, err := openedDirs(value)
	require.NoError(t, err)
	require.Len(t, paths, 3)
	require.Empty(t, paths[1])
	require.NoError(t, os.WriteFile(filepath.Join(certificate, "tls.crt"), []byte("new"), 0o600))
	content, err := os.ReadFile(filepath.Join(paths[2], "tls.crt"))
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	require.NoFileExists(t, filepath.Join(paths[0], "tls.crt"))

	value, err = openDirs(nil)
	require.NoError(t, err)
	paths, err = openedDirs(value)
	require.NoError(t, err)
	require.Empty(t, paths)
}

func TestDescriptorsOfSomebodyElse(t *testing.T) {
	for _, value := range []string{"x", "7,", "99999"} {
		_, err := openedDirs(value)
		require.ErrorContains(t, err, "unset it", value)
	}
	_, err := openDirs([]string{os.Args[0]})
	require.ErrorContains(t, err, "not a directory")
}
