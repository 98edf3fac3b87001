package fetch

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// versionBed is a bed whose destination holds versions.
type versionBed struct {
	*bed
	root string
}

func newVersionBed(t *testing.T) *versionBed {
	b := newBed(t)
	b.change = func(c *Config) { c.Sync = true }
	return &versionBed{bed: b, root: b.dest}
}

// load runs the loader, and returns its status.
func (b *versionBed) load() (protocol.Status, error) {
	b.t.Helper()
	config := b.config("s3://bucket/set/")
	config.Dest = b.root
	progress := NewProgress(ReadyAfter{})
	_, err := RunVersions(b.t.Context(), b.root, config, progress)
	status := progress.Status(time.Now())
	require.Equal(b.t, err != nil, status.State == protocol.StateFailed)
	if err == nil {
		require.Equal(b.t, status.BytesTotal, status.BytesDone, "every byte is counted once")
		require.Equal(b.t, status.FilesTotal, status.FilesDone)
	}
	return status, err
}

// current returns the number of the current version.
func (b *versionBed) current() string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.root, protocol.CurrentFile))
	require.NoError(b.t, err)
	return strings.TrimSpace(string(data))
}

// holds checks that a version is complete and has exactly these files.
func (b *versionBed) holds(number string, want map[string][]byte) {
	b.t.Helper()
	b.dest = filepath.Join(b.root, protocol.VersionsDir, number)
	b.mustHave(want)
	require.FileExists(b.t, filepath.Join(b.dest, destination.CompleteFile))
}

func (b *versionBed) version(number, name string) string {
	return filepath.Join(b.root, protocol.VersionsDir, number, name)
}

// changeSource changes one file of the source, adds one and deletes one, and returns the new content.
func (b *versionBed) changeSource(want map[string][]byte) map[string][]byte {
	next := maps.Clone(want)
	next["many/003"], next["new/file"] = []byte("another"), []byte("new")
	delete(next, "many/004")
	b.fake.put("set/many/003", next["many/003"])
	b.fake.put("set/new/file", next["new/file"])
	b.fake.delete("set/many/004")
	return next
}

func TestVersionIsMadeBesideTheOneBefore(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	first, err := b.load()
	require.NoError(t, err)
	require.Equal(t, "1", b.current())
	b.holds("1", one)
	require.Len(t, first.Contents, 12)
	b.fake.got()

	same, err := b.load()
	require.NoError(t, err)
	require.Equal(t, first.Contents, same.Contents)
	require.Equal(t, "1", b.current())
	require.NoDirExists(t, b.version("2", ""), "nothing is made where nothing is new")
	require.Empty(t, b.fake.got())

	two := b.changeSource(one)
	second, err := b.load()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/many/003": 1, "set/new/file": 1}, b.fake.got(), "only what changed is fetched")
	require.NotEqual(t, first.Contents, second.Contents)
	require.EqualValues(t, 1, second.OldVersions)
	require.Equal(t, "2", b.current())
	b.holds("2", two)
	b.holds("1", one)
	require.Equal(t, inode(t, b.version("1", "large")), inode(t, b.version("2", "large")), "it is there once")
	require.NotEqual(t, inode(t, b.version("1", "many/003")), inode(t, b.version("2", "many/003")))

	dir, err := CurrentVersion(b.root, b.root)
	require.NoError(t, err)
	require.Equal(t, b.version("2", ""), dir)
}

// Consoles create and delete empty objects as folder markers at any time. These are not files of a
// version, so the source counts as unchanged.
func TestVersionOfASourceWithMarkersOfFolders(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	b.fake.put("set/", nil)
	b.fake.put("set/many/", nil)
	_, err := b.load()
	require.NoError(t, err)
	two := b.changeSource(one)
	b.fake.hook = func(_ http.ResponseWriter, _ *http.Request, key string) bool {
		if key == "set/new/file" {
			b.fake.put("set/new/", nil)
			b.fake.delete("set/many/")
		}
		return false
	}
	_, err = b.load()
	require.NoError(t, err)
	require.Equal(t, "2", b.current())
	b.holds("2", two)
}

// The loader removes only versions that the node's driver has renamed to *.unread.
func TestVersionThatNobodyReadsIsRemoved(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	_, err := b.load()
	require.NoError(t, err)
	two := b.changeSource(one)
	_, err = b.load()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(b.version("2.unread", ""), 0o755), "what is current, or later, is not removed whatever its name")
	_, err = b.load()
	require.NoError(t, err)
	require.DirExists(t, b.version("1", ""), "nothing has said that nobody reads it")
	require.DirExists(t, b.version("2.unread", ""))

	require.NoError(t, os.Rename(b.version("1", ""), b.version("1.unread", "")))
	b.change = func(*Config) {} // a run that does not list the source
	b.fake.hook = func(http.ResponseWriter, *http.Request, string) bool {
		t.Error("it asks for nothing")
		return false
	}
	status, err := b.load()
	require.NoError(t, err)
	require.Zero(t, status.OldVersions)
	require.NoDirExists(t, b.version("1.unread", ""))
	b.holds("2", two)
}

// If the load of a later version fails, the version before stays current, and the next run
// fetches only the missing files.
func TestVersionThatBreaksOffGoesOn(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	first, err := b.load()
	require.NoError(t, err)
	two := b.changeSource(one)
	b.fake.got()
	broken := func(w http.ResponseWriter, _ *http.Request, key string) bool {
		if key != "set/new/file" {
			return false
		}
		fail(w, http.StatusInternalServerError, "InternalError")
		return true
	}
	b.fake.hook = broken
	_, err = b.load()
	require.ErrorContains(t, err, "InternalError")
	require.Equal(t, "1", b.current())
	b.holds("1", one)

	// The source changes once more before the next run: the file linked from version 1 is replaced.
	two["d/e/middle"] = []byte("later")
	b.fake.put("set/d/e/middle", two["d/e/middle"])
	b.fake.hook = nil
	second, err := b.load()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/many/003": 1, "set/new/file": 1, "set/d/e/middle": 1}, b.fake.got())
	require.Equal(t, "2", b.current())
	b.holds("2", two)
	b.holds("1", one)
	require.NotEqual(t, first.Contents, second.Contents)
}

// After a kill between the completion of a version and the switch to it, the next run only switches.
func TestVersionIsCurrentOnlyWhenItIsSwitchedTo(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	_, err := b.load()
	require.NoError(t, err)
	two := b.changeSource(one)
	_, err = b.load()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(b.root, protocol.CurrentFile), []byte("1\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(b.root, protocol.CurrentFile+".new"), []byte("2"), 0o644))
	b.fake.got()
	_, err = b.load()
	require.NoError(t, err)
	require.Empty(t, b.fake.got(), "all of it was there")
	require.Equal(t, "2", b.current())
	b.holds("1", one)
	b.holds("2", two)

	// If the source has returned to the current version's content, the next version is removed.
	require.NoError(t, os.WriteFile(filepath.Join(b.root, protocol.CurrentFile), []byte("1\n"), 0o644))
	for _, path := range []string{"many/003", "many/004"} {
		b.fake.put("set/"+path, one[path])
	}
	b.fake.delete("set/new/file")
	_, err = b.load()
	require.NoError(t, err)
	require.Equal(t, "1", b.current())
	require.NoDirExists(t, b.version("2", ""))
}

func TestVersionOfASourceThatChangesMeanwhile(t *testing.T) {
	for name, meanwhile := range map[string]func(*fakeS3){
		"comes":   func(f *fakeS3) { f.put("set/zz", []byte("came late")) },
		"goes":    func(f *fakeS3) { f.delete("set/many/100") },
		"changes": func(f *fakeS3) { f.put("set/many/100", []byte("another")) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newVersionBed(t)
			one := b.dataset()
			_, err := b.load()
			require.NoError(t, err)
			b.changeSource(one)
			changed := false
			b.fake.hook = func(_ http.ResponseWriter, r *http.Request, key string) bool {
				if key == "set/new/file" && r.Method == http.MethodGet && !changed {
					changed = true
					meanwhile(b.fake)
				}
				return false
			}
			_, err = b.load()
			require.ErrorContains(t, err, "the source changed while it was loaded: 1 file")
			var e *store.Error
			require.ErrorAs(t, err, &e)
			require.True(t, e.Retryable)
			require.Equal(t, "1", b.current())
			b.holds("1", one)
			_, err = b.load()
			require.NoError(t, err)
			require.Equal(t, "2", b.current())
		})
	}
}

// A version in which an object was refused is not whole, so it does not become current.
func TestVersionWithRefusedKeysIsNotSwitchedTo(t *testing.T) {
	b := newVersionBed(t)
	b.dataset()
	_, err := b.load()
	require.NoError(t, err)
	b.fake.put("set/many", []byte("a file in the place of a directory"))
	b.fake.put("set/new", []byte("x"))
	status, err := b.load()
	require.NoError(t, err)
	require.EqualValues(t, 1, status.Refused)
	require.Equal(t, "1", b.current())
}

func TestVersionWithoutRoom(t *testing.T) {
	free := need{bytes: 1 << 30, inodes: 1000}
	p := plan{link: []Entry{{Path: "a/b/large", Bytes: free.bytes * 2}}}
	require.NoError(t, checkSpace(p.spaceNeeded(4096, nil, true).plus(p.ownSpace(1, nil)), free), "what is taken over needs its names alone")
	p.fetch = []store.Object{{Path: "a/c", Size: free.bytes * 2}}
	require.ErrorIs(t, checkSpace(p.spaceNeeded(4096, func(store.Object) int64 { return 0 }, true), free), unix.ENOSPC)
}

// A directory that was filled by a run without versions stays without them, and is refreshed in place.
func TestVersionsOfADirectoryThatHasNone(t *testing.T) {
	b := newVersionBed(t)
	one := b.dataset()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	two := b.changeSource(one)
	_, err = b.load()
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(b.root, protocol.CurrentFile))
	b.mustHave(two)
	dir, err := CurrentVersion(b.root, b.root)
	require.NoError(t, err)
	require.Equal(t, b.root, dir)
}

func TestVersionsOfABrokenDirectory(t *testing.T) {
	b := newVersionBed(t)
	b.dataset()
	_, err := b.load()
	require.NoError(t, err)
	for _, text := range []string{"", "0", "01", "../1", "-1", "1\n1", "99999999999"} {
		require.NoError(t, os.WriteFile(filepath.Join(b.root, protocol.CurrentFile), []byte(text), 0o644))
		_, err := b.load()
		require.ErrorContains(t, err, "holds no number of a version", text)
	}
	config := b.config("s3://bucket/set/")
	_, err = RunVersions(t.Context(), filepath.Join(b.root, "x"), config, NewProgress(ReadyAfter{}))
	require.ErrorContains(t, err, "is not below")
}

// Two loaders of one volume: the second is refused.
func TestVersionsAreLocked(t *testing.T) {
	b := newVersionBed(t)
	b.dataset()
	v, err := openVersions(b.root, b.root)
	require.NoError(t, err)
	_, err = b.load()
	require.ErrorIs(t, err, destination.ErrBusy)
	v.close()
	_, err = b.load()
	require.NoError(t, err)
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(name, &st))
	return st.Ino
}

// A load that is cut off at any of its requests, so after any number of links, fetched files and syncs,
// leaves the version before current until the next one is whole.
func TestVersionIsCutOffAtEachRequest(t *testing.T) {
	b := newVersionBed(t)
	one := map[string][]byte{}
	for i := range 6 {
		one[fmt.Sprintf("f%d", i)] = storetest.RandomBytes(uint64(i), 500)
		b.fake.put(fmt.Sprintf("set/f%d", i), one[fmt.Sprintf("f%d", i)])
	}
	_, err := b.load()
	require.NoError(t, err)
	two := maps.Clone(one)
	for _, name := range []string{"f1", "f3", "g"} {
		two[name] = []byte("another " + name)
		b.fake.put("set/"+name, two[name])
	}
	for after := 0; ; after++ {
		require.Less(t, after, 50)
		left := after
		b.fake.hook = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			b.fake.mu.Lock()
			defer b.fake.mu.Unlock()
			if left--; left >= 0 {
				return false
			}
			fail(w, http.StatusForbidden, "AccessDenied")
			return true
		}
		_, err := b.load()
		if err == nil {
			break
		}
		require.Equal(t, "1", b.current())
		b.holds("1", one)
	}
	require.Equal(t, "2", b.current())
	b.holds("1", one)
	b.holds("2", two)
}
