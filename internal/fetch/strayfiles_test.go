package fetch

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// begun leaves version 2 incomplete, with files linked from version 1 and files from the source. It
// returns the content of both versions.
func (b *versionBed) begun() (one, two map[string][]byte) {
	b.t.Helper()
	one = b.dataset()
	_, err := b.load()
	require.NoError(b.t, err)
	two = b.changeSource(one)
	b.breaksOffAt("new/file")
	return one, two
}

// breaksOffAt runs a load that fails because the source refuses one file.
func (b *versionBed) breaksOffAt(name string) {
	b.t.Helper()
	b.fake.hook = func(w http.ResponseWriter, _ *http.Request, key string) bool {
		if key != "set/"+name {
			return false
		}
		fail(w, http.StatusForbidden, "AccessDenied")
		return true
	}
	_, err := b.load()
	require.Error(b.t, err)
	b.fake.hook = nil
}

// A run is killed after it created files and before it wrote their lines into the manifest, and then the
// source changes: the version ends with exactly the source's files.
func TestVersionHasNothingThatItsManifestDoesNotName(t *testing.T) {
	b := newVersionBed(t)
	one, two := b.begun()
	before := func(name string) { // as run.link does
		require.NoError(t, os.MkdirAll(filepath.Dir(b.version("2", name)), 0o755))
		require.NoError(t, os.Link(b.version("1", "large"), b.version("2", name)))
	}
	before("gone/from/source")
	before("a")
	before("later")
	before("dir/file")
	for name, text := range map[string]string{"a/b/large": "below", "dir": "a file now", "later": "fetched"} {
		two[name] = []byte(text)
		b.fake.put("set/"+name, two[name])
	}
	_, err := b.load()
	require.NoError(t, err)
	require.Equal(t, "2", b.current())
	b.holds("2", two)
	require.NoDirExists(t, b.version("2", "gone"))
	b.holds("1", one)
}

// The same for the first version, which readers may use while it is loaded: files that the source still
// has stay, because readers may have opened them.
func TestFirstVersionHasNothingThatItsManifestDoesNotName(t *testing.T) {
	b := newVersionBed(t)
	want := map[string][]byte{"a": []byte("a"), "z": []byte("z")}
	for name, data := range want {
		b.fake.put("set/"+name, data)
	}
	b.fake.put("set/folder/", nil)
	b.breaksOffAt("z")
	require.FileExists(t, b.version("1", "a"))
	for name, data := range map[string]string{"z": "z", "gone": "gone", "d/e/gone": "gone", "now a file/gone": "gone"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(b.version("1", name)), 0o755))
		require.NoError(t, os.WriteFile(b.version("1", name), []byte(data), 0o644))
	}
	want["now a file"] = []byte("a file")
	b.fake.put("set/now a file", want["now a file"])
	folder := inode(t, b.version("1", "folder"))
	b.fake.hook = func(_ http.ResponseWriter, _ *http.Request, key string) bool {
		if key == "set/z" {
			if _, err := os.Stat(b.version("1", "z")); err != nil {
				t.Errorf("it may be read until there is another: %s", err)
			}
		}
		return false
	}
	_, err := b.load()
	require.NoError(t, err)
	require.Equal(t, "1", b.current())
	b.holds("1", want)
	require.NoDirExists(t, b.version("1", "d"))
	require.Equal(t, folder, inode(t, b.version("1", "folder")), "it stayed")
}

// A run is killed while it removes a version that is not needed, after the manifest: the next run starts
// that version from scratch.
func TestVersionWithoutAManifestBeginsAnew(t *testing.T) {
	b := newVersionBed(t)
	one, two := b.begun()
	require.NoError(t, os.RemoveAll(b.version("2", ".flexlvm")))
	require.NoError(t, os.Link(b.version("1", "many/004"), b.version("2", "many/004")))
	delete(two, "many/005")
	b.fake.delete("set/many/005")
	_, err := b.load()
	require.NoError(t, err)
	b.holds("2", two)
	b.holds("1", one)
}

// A run is killed while it removes a complete version that is not needed, after the manifest and before
// the completion file. The latter is removed: a run from a source with revisions would trust it.
func TestVersionWithoutAManifestIsNotComplete(t *testing.T) {
	b := newVersionBed(t)
	b.begun()
	complete, err := os.ReadFile(b.version("1", destination.CompleteFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.version("2", destination.CompleteFile), complete, 0o644))
	require.NoError(t, os.Remove(b.version("2", destination.ManifestFile)))
	v, err := openVersions(b.root, b.root)
	require.NoError(t, err)
	defer v.close()
	require.NoError(t, v.removeUnknown(2))
	require.NoFileExists(t, b.version("2", destination.CompleteFile))
	require.FileExists(t, b.version("1", destination.CompleteFile))
}

// A run is killed after it replaced a fetched file by a link to the version before and before it wrote
// the line, and then the source has the fetched content again. Both files have the same size.
func TestVersionBelievesNoLineOfWhatWasReplaced(t *testing.T) {
	b := newVersionBed(t)
	one := map[string][]byte{"f": []byte("first"), "g": []byte("g")}
	two := map[string][]byte{"f": []byte("other"), "g": []byte("g"), "h": []byte("h")}
	for name, data := range one {
		b.fake.put("set/"+name, data)
	}
	_, err := b.load()
	require.NoError(t, err)
	for name, data := range two {
		b.fake.put("set/"+name, data)
	}
	b.breaksOffAt("h")
	b.breaksOffLinking("f")

	_, err = b.load()
	require.NoError(t, err)
	require.Equal(t, "2", b.current())
	b.holds("2", two)
	b.holds("1", one)
}

// breaksOffLinking links a file of version 1 into version 2, and fails before the manifest records it.
func (b *versionBed) breaksOffLinking(name string) {
	b.t.Helper()
	v, err := openVersions(b.root, b.root)
	require.NoError(b.t, err)
	defer v.close()
	dest, err := destination.Open(b.version("2", ""))
	require.NoError(b.t, err)
	defer dest.Close()
	entries, err := readManifest(b.version("1", ""))
	require.NoError(b.t, err)
	r := &run{dest: dest, progress: NewProgress(ReadyAfter{})}
	r.base = &base{root: v.root, from: v.data(1), to: v.data(2), entries: entries}
	r.manifest, err = openManifest(dest)
	require.NoError(b.t, err)
	defer r.manifest.Close()
	require.Contains(b.t, r.manifest.entries, name, "it was fetched")
	require.ErrorIs(b.t, r.link(b.t.Context(), []Entry{entries[name], {Path: "missing"}}), os.ErrNotExist)
	require.Equal(b.t, inode(b.t, b.version("1", name)), inode(b.t, b.version("2", name)))
}

// Replacing or removing a file that the version before shares frees no space.
func TestVersionGetsNoRoomBackFromTheOneBefore(t *testing.T) {
	b := newVersionBed(t)
	b.begun()
	v, err := openVersions(b.root, b.root)
	require.NoError(t, err)
	defer v.close()
	dest, err := destination.Open(b.version("2", ""))
	require.NoError(t, err)
	defer dest.Close()
	entries, err := readManifest(b.version("2", ""))
	require.NoError(t, err)
	require.Equal(t, inode(t, b.version("1", "large")), inode(t, b.version("2", "large")))
	r := &run{dest: dest, manifest: manifest{entries: entries}}
	r.base = &base{root: v.root, from: v.data(1), to: v.data(2)}
	files := []store.Object{{Path: "large", Size: 1}, {Path: "many/003", Size: 2}}
	p, err := makePlan(files, entries, Config{}.trusts, func(e Entry) (bool, error) { return present(dest, e) })
	require.NoError(t, err)
	_, err = r.reuseUnchanged(&p, files)
	require.NoError(t, err)
	require.Equal(t, need{bytes: entries["many/003"].Bytes, inodes: 1}, p.replaced, "it was fetched for this version, and is in no other")
	gone := int64(0)
	for _, e := range p.gone {
		gone += e.Bytes
	}
	require.NotZero(t, gone)
	require.Equal(t, gone, p.shared)
}
