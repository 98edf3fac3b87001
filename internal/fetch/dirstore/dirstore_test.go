package dirstore

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// No link in a claim can make a loader copy files outside the claim, such as its credentials.
func TestNoLinkLeadsOutOfAClaim(t *testing.T) {
	top := t.TempDir()
	claim, secret := filepath.Join(top, "source"), filepath.Join(top, "credentials")
	require.NoError(t, os.MkdirAll(filepath.Join(claim, "v1", "deep"), 0o755))
	require.NoError(t, os.Mkdir(secret, 0o755))
	for name, to := range map[string]string{"current": "v1", "out": secret, "up": "../credentials", "v1/top": ".."} {
		require.NoError(t, os.Symlink(to, filepath.Join(claim, name)))
	}
	for dir, good := range map[string]bool{
		"/": true, "/v1/": true, "/v1/deep/": true, "/current/": true, "/current/deep": true, "/v1/top/": true,
		"/out/": false, "/up": false, "/current/top/up/": false,
	} {
		root, err := openIn(claim, claim+dir)
		require.Equal(t, good, err == nil, "%s: %v", dir, err)
		if err == nil {
			require.NoError(t, root.Close())
		}
	}
	// Outside of claims, links to the directory that the user has named are followed.
	root, err := openIn(secret, claim+"/up/")
	require.NoError(t, err)
	require.NoError(t, root.Close())
}

// withStat is a fs.FileInfo with another stat.
type withStat struct {
	fs.FileInfo
	stat *syscall.Stat_t
}

func (w withStat) Sys() any { return w.stat }

// The files in lost+found of an uploaded directory may exist nowhere else.
func TestLostAndFoundIsUploaded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lost+found", "#12"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "d", "lost+found"), 0o755))
	for _, name := range []string{"a", "d/lost+found/x", "lost+found/#12/x"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	list := func(d *Directory) (keys []string) {
		require.NoError(t, d.ListRest(t.Context(), func(o store.Object) error {
			require.Empty(t, o.Unfetchable)
			keys = append(keys, o.Key[len(dir):])
			return nil
		}))
		return keys
	}
	local, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"/a", "/d/lost+found/x", "/lost+found/#12/x"}, list(local))
	source, err := New(store.Source{Key: dir + "/", Prefix: dir + "/"})
	require.NoError(t, err)
	require.Equal(t, []string{"/a", "/d/lost+found/x"}, list(source.(*Directory)))

	// The file system's own lost+found, which root owns, is skipped if it cannot be listed. A user's is an error, like
	// any directory.
	info, err := os.Stat(filepath.Join(dir, "lost+found"))
	require.NoError(t, err)
	for uid, skipped := range map[uint32]bool{0: true, 1000: false} {
		entry := fs.FileInfoToDirEntry(withStat{info, &syscall.Stat_t{Uid: uid}})
		require.Equal(t, skipped, local.skipsRecovered(entry, &fs.PathError{Op: "open", Path: "lost+found", Err: unix.EACCES}))
		require.False(t, local.skipsRecovered(entry, unix.EIO))
		require.False(t, local.skipsRecovered(entry, nil))
	}
}

// An I/O error of the source, from a file server that is down or a bad sector, is transient, and does
// not count as one of the destination.
func TestErrorsOfTheSource(t *testing.T) {
	file, err := os.Open("/proc/self/mem") // nothing is mapped at its beginning
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	p := &Pinned{ctx: t.Context(), dir: &Directory{}, file: file, left: 10}
	_, err = p.ReadAt(make([]byte, 10), 0)
	require.ErrorIs(t, err, unix.EIO)
	_, err = p.Read(make([]byte, 10))
	require.ErrorIs(t, err, unix.EIO)
	require.Equal(t, store.Transient, store.Classify(err))

	require.Equal(t, store.Denied, store.Classify(store.FromSource(Readable(fs.ErrPermission))))
	require.Equal(t, store.Gone, store.Classify(store.FromSource(store.ErrGone)))
	require.Equal(t, store.Changed, store.Classify(store.FromSource(store.ErrChanged)))
	require.NoError(t, store.FromSource(nil))
}

// An upload skips a directory that is deleted while its parent is listed. For a load that is an error,
// because it removes files that it does not find in the source.
func TestWhatGoesWhileItIsListed(t *testing.T) {
	list := func(how func(d *Directory, each func(store.Object) error) error) (keys []string, err error) {
		dir := t.TempDir()
		for _, name := range []string{"a", "d/x", "z"} {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		d, err := New(store.Source{Key: dir + "/", Prefix: dir + "/"})
		require.NoError(t, err)
		err = how(d.(*Directory), func(o store.Object) error {
			if keys = append(keys, o.Key[len(dir):]); len(keys) == 1 {
				require.NoError(t, os.RemoveAll(filepath.Join(dir, "d")))
			}
			require.Empty(t, o.Unfetchable)
			return nil
		})
		return keys, err
	}
	keys, err := list(func(d *Directory, each func(store.Object) error) error { return d.ListRest(t.Context(), each) })
	require.NoError(t, err)
	require.Equal(t, []string{"/a", "/z"}, keys)
	_, err = list(func(d *Directory, each func(store.Object) error) error { return d.List(t.Context(), each) })
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = list(func(d *Directory, each func(store.Object) error) error {
		require.NoError(t, os.RemoveAll(d.source.Key))
		return d.ListRest(t.Context(), each)
	})
	require.Error(t, err, "the directory itself")
}
