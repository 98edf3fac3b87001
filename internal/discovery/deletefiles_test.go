package discovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func foundAt(t *testing.T, path string) Found {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	is, err := dirIDOf(unix.AT_FDCWD, path)
	require.NoError(t, err)
	return Found{Path: path, Kind: Directory, Number: st.Dev, Root: path, Mount: is.mount, Inode: is.inode}
}

func nobody() error { return nil }

// tree creates a tenant's directory, with every kind of link that could lead out of it.
func tree(t *testing.T) (top, outside string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	top, outside = filepath.Join(base, "top"), filepath.Join(base, "outside")
	for _, dir := range []string{"a/b/c", "d", "lost+found/x", "many"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
	}
	require.NoError(t, os.MkdirAll(outside, 0o755))
	keep := filepath.Join(outside, "keep")
	require.NoError(t, os.WriteFile(keep, []byte("kept"), 0o600))
	for at, to := range map[string]string{"a/link": outside, "a/up": "../../outside", "d/file": keep, "d/root": "/"} {
		require.NoError(t, os.Symlink(to, filepath.Join(top, at)))
	}
	require.NoError(t, os.Link(keep, filepath.Join(top, "a/hard")))
	require.NoError(t, unix.Mkfifo(filepath.Join(top, "a/b/pipe"), 0o600))
	for i := range 3 * dirBatch {
		require.NoError(t, os.WriteFile(filepath.Join(top, "many", fmt.Sprint(i)), nil, 0o600))
	}
	deep := top
	for range 3 * maxDepth {
		deep = filepath.Join(deep, "deep")
		require.NoError(t, os.Mkdir(deep, 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(deep, "bottom"), nil, 0o600))
	require.NoError(t, os.Chmod(top, 0o700))
	return top, outside
}

// All files are deleted, the targets of links out of the directory stay, and its owner and mode are restored.
func TestDeleteFiles(t *testing.T) {
	top, outside := tree(t)
	f := foundAt(t, top)
	require.NoError(t, unix.Setxattr(filepath.Join(top, lostAndFound), "user.tenant", []byte("secret"), 0))
	require.ErrorContains(t, checkEmpty(f, nil), "perhaps more")
	require.NoError(t, deleteFiles(t.Context(), f, &Owner{UID: os.Getuid(), GID: os.Getgid(), Mode: 0o2775}, newRateLimiter(0), nobody))
	require.NoError(t, checkEmpty(f, nil))
	left, err := os.ReadDir(top)
	require.NoError(t, err)
	require.Len(t, left, 1)
	lost := filepath.Join(top, lostAndFound)
	mode, err := os.Stat(lost)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, mode.Mode().Perm())
	_, err = unix.Getxattr(lost, "user.tenant", nil)
	require.ErrorIs(t, err, unix.ENODATA, "the next tenant could read it")
	left, err = os.ReadDir(lost)
	require.NoError(t, err)
	require.Empty(t, left)
	kept, err := os.ReadFile(filepath.Join(outside, "keep"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept))
	owner, err := ownerOf(f)
	require.NoError(t, err)
	require.EqualValues(t, 0o2775, owner.Mode)
	require.NoError(t, deleteFiles(t.Context(), f, owner, newRateLimiter(0), nobody), "again")
}

// flagged sets flags of a directory, as its owner may (FS_NODUMP_FL, FS_NOATIME_FL of linux/fs.h).
func flagged(t *testing.T, dir string, flags int) {
	t.Helper()
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	now, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, now&^(noDump|noAtime)|flags))
}

const noDump, noAtime = 0x40, 0x80

// The next tenant's files inherit no flags that the last tenant has set, and the administrator's flags stay.
func TestDeleteFilesRestoresFlags(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	lost := filepath.Join(top, lostAndFound)
	require.NoError(t, os.Mkdir(lost, 0o700))
	flagged(t, top, noAtime)
	f := foundAt(t, top)
	first, err := ownerOf(f)
	require.NoError(t, err)
	require.EqualValues(t, noAtime, first.Attributes.Flags)
	flagged(t, top, noDump)
	flagged(t, lost, noDump)
	require.NoError(t, checkEmpty(f, nil))
	require.ErrorContains(t, checkEmpty(f, first), top+" has flags 0x40")
	require.NoError(t, deleteFiles(t.Context(), f, first, newRateLimiter(0), nobody))
	require.NoError(t, checkEmpty(f, first))
	again, err := ownerOf(f)
	require.NoError(t, err)
	require.Equal(t, first, again)
	below, err := ownerOf(foundAt(t, lost))
	require.NoError(t, err)
	require.Zero(t, *below.Attributes)
}

// Earlier releases recorded no attributes, so those of a directory may be the administrator's or
// the tenant's. If a person has emptied the directory, they are not checked. Cleaning resets
// them, and then they are known.
func TestAttributesThatAreNotNoted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "discovered.json")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`{"fs-u:/a": {"path": "/a", "volume": "pv-1", "owner": {"uid": %d, "gid": %d, "mode": 493}}}`, os.Getuid(), os.Getgid())), 0o600))
	l, err := ReadLedger(file)
	require.NoError(t, err)
	e := l["fs-u:/a"]
	require.Nil(t, e.Owner.Attributes)
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	flagged(t, top, noDump)
	f := foundAt(t, top)
	require.NoError(t, checkEmpty(f, e.Owner))
	byHand := e.Empty(nil)
	require.Nil(t, byHand.Owner.Attributes, "a tenant may have set what it has")
	require.False(t, byHand.OwnerUnknown())

	require.NoError(t, deleteFiles(t.Context(), f, e.Owner, newRateLimiter(0), nobody))
	cleaned := e.Clean()
	now, err := ownerOf(f)
	require.NoError(t, err)
	require.Equal(t, now, cleaned.Owner)
	require.Zero(t, *now.Attributes)
	require.Nil(t, e.Owner.Attributes, "entries share nothing")
	require.NoError(t, (Ledger{"fs-u:/a": cleaned}).Write(file))
	l, err = ReadLedger(file)
	require.NoError(t, err)
	require.Equal(t, cleaned, l["fs-u:/a"], "none is not the same as not noted")
	flagged(t, top, noDump)
	require.ErrorContains(t, checkEmpty(f, cleaned.Owner), top+" has flags 0x40")
}

// EXDEV means a mount if an entry is opened, and another project if it is moved.
func TestRefusal(t *testing.T) {
	require.ErrorContains(t, explain("open", "x", unix.EXDEV), "unmount it")
	require.ErrorContains(t, explain("move", "x", unix.EBUSY), "unmount it")
	require.ErrorContains(t, explain("move", "x", unix.EXDEV), "another project")
	require.ErrorContains(t, explain("delete", "x", unix.EPERM), "chattr -i -a")
}

// Files in lost+found, which a repair of the file system has recovered, are the tenant's. So is a file of that name.
func TestCheckEmptyInspectsLostAndFound(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	f, found := foundAt(t, top), filepath.Join(top, lostAndFound)
	require.NoError(t, os.Mkdir(found, 0o700))
	require.NoError(t, checkEmpty(f, nil))
	require.NoError(t, os.WriteFile(filepath.Join(found, "#12"), []byte("his"), 0o600))
	require.ErrorContains(t, checkEmpty(f, nil), `lost+found/#12`)
	require.NoError(t, os.RemoveAll(found))
	require.NoError(t, os.WriteFile(found, []byte("his"), 0o600))
	require.ErrorContains(t, checkEmpty(f, nil), `"lost+found"`)
}

// The deletion stops when the directory comes into use, respects its rate, and can be continued.
func TestDeleteFilesIsInterrupted(t *testing.T) {
	top, _ := tree(t)
	f := foundAt(t, top)
	used := errors.New("a person looks at it")
	require.ErrorIs(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), func() error { return used }), used)
	require.ErrorContains(t, checkEmpty(f, nil), "perhaps more")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, deleteFiles(ctx, f, nil, newRateLimiter(100), nobody), context.DeadlineExceeded)
	left, err := os.ReadDir(top)
	require.NoError(t, err)
	require.NotEmpty(t, left)
	require.NoError(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody))
	require.NoError(t, checkEmpty(f, nil))
}

// If a link, another directory or another file system has taken its place, nothing is deleted.
func TestDeleteFilesOfSomethingElse(t *testing.T) {
	top, outside := tree(t)
	f := foundAt(t, top)
	require.NoError(t, os.Rename(top, top+"-moved"))
	require.NoError(t, os.Symlink(outside, top))
	require.ErrorIs(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody), unix.ELOOP)
	require.NoError(t, os.Remove(top))
	require.NoError(t, os.Mkdir(top, 0o755))
	require.ErrorContains(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody), "the directory or mount is not the one")
	f.Number++
	require.ErrorContains(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody), "the file system is not the one")
	_, err := os.Stat(filepath.Join(outside, "keep"))
	require.NoError(t, err)
}

// A tenant's process that swaps directories for links during the deletion cannot redirect it.
func TestDeleteFilesWhileDirectoriesBecomeLinks(t *testing.T) {
	top, outside := tree(t)
	f := foundAt(t, top)
	ctx, stop := context.WithCancel(t.Context())
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		at := filepath.Join(top, "swap")
		for ctx.Err() == nil {
			_ = os.MkdirAll(filepath.Join(at, "sub"), 0o755)
			_ = os.Rename(at, at+"-away")
			_ = os.Symlink(outside, at)
			_ = os.Remove(at)
			_ = os.RemoveAll(at + "-away")
		}
	}()
	for range 20 {
		_ = deleteFiles(ctx, f, nil, newRateLimiter(0), nobody) // it may fail
	}
	stop()
	<-swapped
	_, err := os.Stat(filepath.Join(outside, "keep"))
	require.NoError(t, err)
	require.NoError(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody))
}
