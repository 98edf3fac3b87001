package loop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestFileIsMadeOnceAndSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.img")
	made, err := Create(path, volume.GiB)
	require.NoError(t, err)
	read, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, made, read)
	require.Equal(t, volume.GiB, read.Size)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	require.EqualValues(t, volume.GiB+Header, st.Size)
	require.Less(t, st.Blocks*512, int64(volume.MiB))
	require.EqualValues(t, 0o600, st.Mode&0o777)

	_, err = Create(path, volume.GiB)
	require.ErrorIs(t, err, os.ErrExist)
	again, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, made, again)

	require.NoError(t, os.Truncate(path, int64(volume.GiB)))
	_, err = Read(path)
	require.ErrorContains(t, err, "was made with")

	_, err = Create(filepath.Join(filepath.Dir(path), "b.img"), volume.MaxSize)
	require.ErrorContains(t, err, "free, and the file may grow to")
	require.NoFileExists(t, filepath.Join(filepath.Dir(path), "b.img"))
}

func TestFileOfSomebodyElse(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"empty":       func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"data":        func(path string) error { return os.WriteFile(path, []byte("flexlvm loop"), 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link": func(path string) error {
			if _, err := Create(path+"-real", volume.MiB); err != nil {
				return err
			}
			return os.Symlink(path+"-real", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.img")
			require.NoError(t, put(path))
			_, err := Read(path)
			require.ErrorIs(t, err, ErrForeign)
		})
	}
	path := filepath.Join(t.TempDir(), "a.img")
	_, err := Read(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte(magic+"{}\n"), 0o600))
	_, err = Read(path)
	require.ErrorContains(t, err, "makes no sense")
}
