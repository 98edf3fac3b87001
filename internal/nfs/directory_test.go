package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// bait is the data beside a volume's directory that must never be touched.
type bait struct {
	t    *testing.T
	root *os.Root
	dir  string // the export
	want map[string]string
}

// newBait creates an export with the data of others in it, and a directory beside it.
func newBait(t *testing.T) *bait {
	t.Helper()
	base := t.TempDir()
	b := &bait{t: t, dir: filepath.Join(base, "export")}
	for _, path := range []string{"outside/precious", "export/other/precious", "export/archived-other/precious"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(base, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, path), []byte(path), 0o644))
	}
	b.want = b.tree(base)
	root, err := os.OpenRoot(b.dir)
	require.NoError(t, err)
	b.root = root
	t.Cleanup(func() {
		root.Close()
		got := b.tree(base)
		for path, content := range b.want {
			require.Equal(t, content, got[path], "the bait %s", path)
		}
	})
	return b
}

func (b *bait) tree(base string) map[string]string {
	out := map[string]string{}
	require.NoError(b.t, filepath.WalkDir(base, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			content, err := os.ReadFile(path)
			require.NoError(b.t, err)
			out[path] = string(content)
		}
		return err
	}))
	return out
}

func (b *bait) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

var here = place{name: "team-data-" + pvName, volume: pvName}

func (b *bait) make() (asked bool) {
	b.t.Helper()
	asked, err := makeDirectory(b.t.Context(), b.root, here, everybody, "team/data")
	require.NoError(b.t, err)
	return asked
}

func (b *bait) names() (out []string) {
	entries, err := os.ReadDir(b.dir)
	require.NoError(b.t, err)
	for _, e := range entries {
		if e.Name() != "other" && e.Name() != "archived-other" && e.Name() != nfsmark.Dir {
			out = append(out, e.Name())
		}
	}
	return out
}

func (b *bait) marked() bool {
	_, err := os.Lstat(b.path(nfsmark.Dir, pvName))
	return err == nil
}

// removeAll calls remove until it is done.
func (b *bait) removeAll() (first finding) {
	b.t.Helper()
	for calls := 1; ; calls++ {
		found, more, err := remove(b.t.Context(), b.root, here, true)
		require.NoError(b.t, err)
		if first == "" {
			first = found
		}
		if !more {
			return first
		}
		require.Less(b.t, calls, 1000)
	}
}

func TestMakeDirectory(t *testing.T) {
	b := newBait(t)
	for _, first := range []bool{true, false} { // a repeated call succeeds
		require.Equal(t, first, b.make())
		info, err := os.Stat(b.path(here.name))
		require.NoError(t, err)
		require.Equal(t, "drwxrwxrwx", info.Mode().String(), "whatever the umask")
	}
	_, err := makeDirectory(t.Context(), b.root, here, Access{Mode: 0o770 | fs.ModeSetgid, Group: os.Getgid()}, "team/data")
	require.NoError(t, err)
	info, err := os.Stat(b.path(here.name))
	require.NoError(t, err)
	require.Equal(t, "dgrwxrwx---", info.Mode().String())
	content, err := os.ReadFile(b.path(nfsmark.Dir, pvName))
	require.NoError(t, err)
	require.JSONEq(t, `{"directory":"`+here.name+`","persistentVolume":"`+pvName+`","claim":"team/data"}`, string(content))
	info, err = os.Stat(b.path(nfsmark.Dir))
	require.NoError(t, err)
	require.Equal(t, "drwx------", info.Mode().String())
}

// An existing entry with the name of a new volume's directory is not flexlvm's.
func TestMakeDirectoryWhereSomethingIs(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"file":      func(path string) error { return os.WriteFile(path, []byte("x"), 0o644) },
		"link":      func(path string) error { return os.Symlink("other", path) },
		"link out":  func(path string) error { return os.Symlink("../outside", path) },
		"dangling":  func(path string) error { return os.Symlink("nothing", path) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBait(t)
			require.NoError(t, plant(b.path(here.name)))
			_, err := makeDirectory(t.Context(), b.root, here, everybody, "team/data")
			var foreign *nfsmark.ForeignError
			require.ErrorAs(t, err, &foreign)
			require.False(t, b.marked())
			// The same if it was planted after the mark was written.
			require.NoError(t, here.mark("team/data").Write(b.root))
			if name != "directory" {
				_, err = makeDirectory(t.Context(), b.root, here, everybody, "team/data")
				require.ErrorAs(t, err, &foreign)
				_, _, err = remove(t.Context(), b.root, here, true)
				require.ErrorAs(t, err, &foreign)
				_, err = archive(t.Context(), b.root, here)
				require.ErrorAs(t, err, &foreign)
			}
		})
	}
}

func TestMakeDirectoryAfterAKill(t *testing.T) {
	b := newBait(t)
	require.NoError(t, os.Mkdir(b.path(nfsmark.Dir), 0o700))
	require.NoError(t, os.WriteFile(b.path(nfsmark.Dir, "."+pvName), []byte(`{"dire`), 0o600)) // killed while the mark was written
	b.make()
	require.NoError(t, os.Chmod(b.path(here.name), 0o700)) // killed before the mode
	b.make()
	info, err := os.Stat(b.path(here.name))
	require.NoError(t, err)
	require.Equal(t, "drwxrwxrwx", info.Mode().String())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	other := place{name: "team-late-" + strings.Replace(pvName, "0d", "1d", 1), volume: strings.Replace(pvName, "0d", "1d", 1)}
	_, err = makeDirectory(ended, b.root, other, everybody, "team/late")
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, b.path(other.name), "nobody waits for it any more")
}

func TestArchive(t *testing.T) {
	b := newBait(t)
	b.make()
	require.NoError(t, os.WriteFile(b.path(here.name, "file"), []byte("kept"), 0o644))
	found, err := archive(t.Context(), b.root, here)
	require.NoError(t, err)
	require.Equal(t, inPlace, found)
	require.Equal(t, []string{"archived-" + here.name}, b.names())
	content, err := os.ReadFile(b.path("archived-"+here.name, "file"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(content))
	require.False(t, b.marked())
	found, err = archive(t.Context(), b.root, here)
	require.NoError(t, err, "again")
	require.Equal(t, finished, found)
	require.FileExists(t, b.path("archived-"+here.name, "file"))
}

func TestArchiveGoesOnAfterAKill(t *testing.T) {
	b := newBait(t)
	b.make()
	require.NoError(t, os.Rename(b.path(here.name), b.path("archived-"+here.name)))
	found, err := archive(t.Context(), b.root, here)
	require.NoError(t, err)
	require.Equal(t, archived, found)
	require.False(t, b.marked())
}

// A person may decide to archive a directory while it is being removed. What is left is kept.
func TestArchiveOfWhatIsBeingRemoved(t *testing.T) {
	b := newBait(t)
	b.make()
	require.NoError(t, os.Rename(b.path(here.name), b.path(".deleting-"+here.name)))
	found, err := archive(t.Context(), b.root, here)
	require.NoError(t, err)
	require.Equal(t, doomed, found)
	require.Equal(t, []string{"archived-" + here.name}, b.names())
	found, _, err = remove(t.Context(), b.root, here, true)
	require.NoError(t, err)
	require.Equal(t, finished, found)
	require.Equal(t, []string{"archived-" + here.name}, b.names(), "what is archived is never removed")
	require.NoError(t, here.mark("team/data").Write(b.root))
	_, _, err = remove(t.Context(), b.root, here, true)
	require.ErrorContains(t, err, "is kept for a person")
}

func TestRemove(t *testing.T) {
	b := newBait(t)
	b.make()
	b.fill(here.name)
	require.Equal(t, inPlace, b.removeAll())
	require.Empty(t, b.names())
	require.False(t, b.marked())
	require.Equal(t, gone, b.removeAll(), "again")
}

// fill creates content as tenants do: links to everywhere, nested directories, and entries that cannot be read.
func (b *bait) fill(name string) {
	b.t.Helper()
	dir := b.path(name)
	for link, to := range map[string]string{
		"out": "../../outside", "beside": "../other", "up": "..", "root": "/", "self": ".", "loop": "loop", "absolute": b.path("other"), "file": "../other/precious",
	} {
		require.NoError(b.t, os.Symlink(to, filepath.Join(dir, link)))
		require.NoError(b.t, os.MkdirAll(filepath.Join(dir, "sub", "sub"), 0o755))
		require.NoError(b.t, os.Symlink(to, filepath.Join(dir, "sub", "sub", link)))
	}
	require.NoError(b.t, os.Link(b.path("other", "precious"), filepath.Join(dir, "hard link")))
	require.NoError(b.t, os.Mkdir(filepath.Join(dir, "closed"), 0))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "sub", "-rf *\n"), nil, 0))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, strings.Repeat("n", 255)), nil, 0o644))
}

func TestRemoveInSteps(t *testing.T) {
	b := newBait(t)
	b.make()
	for i := range 40 {
		sub := b.path(here.name, fmt.Sprintf("d%d", i), "e")
		require.NoError(t, os.MkdirAll(sub, 0o755))
		for j := range 50 {
			require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprint(j)), nil, 0o644))
		}
	}
	found, more, err := remove(t.Context(), b.root, here, true)
	require.NoError(t, err)
	require.Equal(t, inPlace, found)
	require.True(t, more)
	require.Equal(t, []string{".deleting-" + here.name}, b.names(), "nobody takes it for a volume any more")
	require.True(t, b.marked())
	info, err := os.Stat(b.path(".deleting-" + here.name))
	require.NoError(t, err)
	require.Equal(t, "drwx------", info.Mode().String())

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = remove(ended, b.root, here, true)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, doomed, b.removeAll())
	require.Empty(t, b.names())
}

// On a slow server, the removal takes several calls, and the server does not count as silent.
func TestRemoveOnASlowServer(t *testing.T) {
	b := newBait(t)
	b.make()
	b.fill(here.name)
	c := &clearing{left: atOnce, until: time.Now().Add(-time.Second)}
	require.False(t, c.spent(), "nothing is gone yet")
	c.left--
	require.True(t, c.spent())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for range 100_000 {
		if _, more, err := remove(ctx, b.root, here, true); err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			break
		} else if !more {
			break
		}
	}
	b.removeAll()
	require.Empty(t, b.names())
}

// A tenant may nest directories deeper than the longest path, and than the number of files that may be open.
func TestRemoveDepths(t *testing.T) {
	b := newBait(t)
	b.make()
	root, err := b.root.OpenRoot(here.name)
	require.NoError(t, err)
	for range 1200 {
		require.NoError(t, root.Mkdir(strings.Repeat("d", 100), 0o755))
		next, err := root.OpenRoot(strings.Repeat("d", 100))
		require.NoError(t, err)
		require.NoError(t, errors.Join(root.Close(), next.Mkdir("side", 0o755)))
		root = next
	}
	require.NoError(t, root.Close())
	b.removeAll()
	require.Empty(t, b.names())
}

func TestFindRefusesWhatIsNotOurs(t *testing.T) {
	disposals := map[string]func(b *bait) error{
		"remove":  func(b *bait) error { _, _, err := remove(t.Context(), b.root, here, true); return err },
		"archive": func(b *bait) error { _, err := archive(t.Context(), b.root, here); return err },
	}
	tests := map[string]struct {
		spoil func(b *bait) error
		want  string
	}{
		"no mark":  {func(b *bait) error { return os.Remove(b.path(nfsmark.Dir, pvName)) }, "has no mark"},
		"no marks": {func(b *bait) error { return os.RemoveAll(b.path(nfsmark.Dir)) }, "not known for an export"},
		"marks are a link": {func(b *bait) error {
			return errors.Join(os.RemoveAll(b.path(nfsmark.Dir)), os.Symlink("other", b.path(nfsmark.Dir)))
		}, "is not a directory"},
		"another's mark": {func(b *bait) error {
			return os.WriteFile(b.path(nfsmark.Dir, pvName), []byte(`{"directory":"other","persistentVolume":"`+pvName+`"}`), 0o600)
		}, `is the mark of directory "other"`},
		"a mark that makes no sense": {func(b *bait) error { return os.WriteFile(b.path(nfsmark.Dir, pvName), []byte("{"), 0o600) }, "read mark"},
		"a link in its place": {func(b *bait) error {
			return errors.Join(os.Remove(b.path(here.name)), os.Symlink("other", b.path(here.name)))
		}, "is not a directory"},
		"a link out in the place of what is being removed": {func(b *bait) error {
			return errors.Join(os.Remove(b.path(here.name)), os.Symlink("../outside", b.path(".deleting-"+here.name)))
		}, "is not a directory"},
		"twice":            {func(b *bait) error { return os.Mkdir(b.path(".deleting-"+here.name), 0o755) }, "more than once"},
		"archived already": {func(b *bait) error { return os.Mkdir(b.path("archived-"+here.name), 0o755) }, "more than once"},
	}
	for name, tt := range tests {
		for what, dispose := range disposals {
			t.Run(name+"/"+what, func(t *testing.T) {
				b := newBait(t)
				b.make()
				require.NoError(t, tt.spoil(b))
				before := b.names()
				require.ErrorContains(t, dispose(b), tt.want)
				require.Equal(t, before, b.names())
			})
		}
	}
}

func TestDirectoryRemovedByHand(t *testing.T) {
	b := newBait(t)
	b.make()
	require.NoError(t, os.Remove(b.path(here.name)))
	found, more, err := remove(t.Context(), b.root, here, true)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, missing, found)
	require.False(t, b.marked())

	b.make()
	require.NoError(t, os.Remove(b.path(here.name)))
	found, err = archive(t.Context(), b.root, here)
	require.NoError(t, err)
	require.Equal(t, missing, found)
	require.Empty(t, b.names())
}
