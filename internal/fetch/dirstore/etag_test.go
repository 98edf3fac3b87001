package dirstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// opened returns a directory with one file, its object, and the open file.
func opened(t *testing.T) (*Directory, store.Object, *os.File) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o600))
	d, err := Open(dir)
	require.NoError(t, err)
	o, _, err := d.Stat(t.Context(), dir+"/a", "")
	require.NoError(t, err)
	file, err := os.Open(filepath.Join(dir, "a"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	return d, o, file
}

// The attributes that reveal a change are read from the file server, because an NFS client may answer from its cache.
func TestChangesAreAskedOfTheFileServer(t *testing.T) {
	d, o, file := opened(t)
	flags := 0
	etag, err := d.etagNow(file, func(fd int, path string, f, mask int, s *unix.Statx_t) error {
		flags = f
		return unix.Statx(fd, path, f, mask, s)
	})
	require.NoError(t, err)
	require.Equal(t, o.ETag, etag)
	require.NotZero(t, flags&unix.AT_STATX_FORCE_SYNC)

	pinned := &Pinned{ctx: t.Context(), dir: d, object: o, file: file, left: 3}
	require.NoError(t, pinned.Check())
	require.NoError(t, os.WriteFile(file.Name(), []byte("other"), 0o600))
	require.ErrorIs(t, pinned.Check(), store.ErrChanged)
}

func TestETagWithoutStatx(t *testing.T) {
	d, o, file := opened(t)
	for _, err := range []error{unix.ENOSYS, unix.EPERM} {
		etag, err := d.etagNow(file, func(int, string, int, int, *unix.Statx_t) error { return err })
		require.NoError(t, err)
		require.Equal(t, o.ETag, etag)
	}
	_, err := d.etagNow(file, func(int, string, int, int, *unix.Statx_t) error { return unix.ESTALE })
	require.ErrorIs(t, err, unix.ESTALE)
	interrupted := false
	etag, err := d.etagNow(file, func(fd int, path string, f, mask int, s *unix.Statx_t) error {
		if !interrupted {
			interrupted = true
			return unix.EINTR
		}
		return unix.Statx(fd, path, f, mask, s)
	})
	require.NoError(t, err)
	require.Equal(t, o.ETag, etag)
}

// FUSE and SMB may report another inode number for an unchanged file, so the ETag leaves it out there.
func TestUnstableInodes(t *testing.T) {
	for magic, unstable := range map[int64]bool{unix.FUSE_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true, unix.NFS_SUPER_MAGIC: false, unix.XFS_SUPER_MAGIC: false} {
		require.Equal(t, unstable, inodesAreUnstable(magic), "%x", magic)
	}
	d, o, file := opened(t)
	require.False(t, d.unstableInodes)
	info, err := file.Stat()
	require.NoError(t, err)
	other := *info.Sys().(*syscall.Stat_t)
	other.Ino++
	require.NotEqual(t, o.ETag, d.objectOf("a", withStat{info, &other}).ETag)
	d.unstableInodes = true
	o = d.objectOf("a", info)
	require.Equal(t, o.ETag, d.objectOf("a", withStat{info, &other}).ETag)
	now, err := d.etagNow(file, unix.Statx)
	require.NoError(t, err)
	require.Equal(t, o.ETag, now)
	require.Equal(t, time.Unix(other.Ctim.Unix()), ChangeTime(o.ETag))
	other.Ctim.Nsec++
	require.NotEqual(t, o.ETag, d.objectOf("a", withStat{info, &other}).ETag)
}
