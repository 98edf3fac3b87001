package fetch

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// dataset fills the fake server, and returns the files that must arrive from "set/": small ones, an
// empty one, one of medium size, one of a single direct write, and one of several ranges.
func (b *bed) dataset() map[string][]byte {
	want := map[string][]byte{
		"empty": {}, "d/$(touch x);&'\"|*?[]é": []byte("odd"), "d/e/middle": storetest.RandomBytes(7, 3*store.MiB+5), "large": storetest.RandomBytes(8, wholeLimit+store.MiB+3),
		"one write": storetest.RandomBytes(9, maxBuffer),
	}
	for i := range 120 { // three pages of the listing
		want[fmt.Sprintf("many/%03d", i)] = storetest.RandomBytes(uint64(i), 1000+int64(i))
	}
	for path, data := range want {
		b.fake.put("set/"+path, data)
	}
	return want
}

func TestRunFetchesAll(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	b.fake.put("other/x", []byte("not wanted"))
	refused, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Empty(t, refused)
	for path, e := range b.mustHave(want) {
		require.Equal(t, store.CheckCRC64, e.Check, path)
		require.NotEmpty(t, e.Checksum)
		require.Equal(t, md5Hex(want[path]), e.ETag)
	}
	gets := b.fake.got()
	require.Equal(t, 3, gets["set/large"], "in ranges")
	require.Equal(t, 1, gets["set/d/e/middle"])

	b.fake.hook = func(http.ResponseWriter, *http.Request, string) bool {
		t.Error("a complete destination asks for nothing")
		return false
	}
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
}

func TestRunOneObjectAndGlob(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	_, _, err := b.run("s3://bucket/set/large")
	require.NoError(t, err)
	b.mustHave(map[string][]byte{"large": want["large"]})

	b.dest += "2"
	b.change = func(c *Config) { c.Exclude = []string{"005"} }
	_, _, err = b.run("s3://bucket/set/ma*/00?")
	require.NoError(t, err)
	few := map[string][]byte{}
	for i := range 10 {
		if path := fmt.Sprintf("many/%03d", i); i != 5 {
			few[path] = want[path]
		}
	}
	b.mustHave(few)

	b.dest += "3"
	_, _, err = b.run("s3://bucket/set/nothing/")
	require.ErrorContains(t, err, "no files to fetch")
	_, _, err = b.run("s3://bucket/set")
	require.ErrorContains(t, err, "end it in a slash")
}

func TestSyncFindsChangedNewAndDeleted(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.fake.got()
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "mine"), []byte("of the user"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "many/009"), want["many/009"][:5], 0o600))

	want["many/001"], want["new"] = []byte("changed"), []byte("new")
	b.fake.put("set/many/001", want["many/001"])
	b.fake.put("set/new", want["new"])
	b.fake.delete("set/d/e/middle")
	delete(want, "d/e/middle")
	b.change = func(c *Config) { c.Sync = true }
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, map[string]int{"set/many/001": 1, "set/new": 1, "set/many/009": 1}, b.fake.got())
	require.NoDirExists(t, filepath.Join(b.dest, "d/e"))
	mine, err := os.ReadFile(filepath.Join(b.dest, "mine"))
	require.NoError(t, err, "what fetch did not fetch it does not remove")
	require.Equal(t, "of the user", string(mine))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "mine")))
	b.mustHave(want)

	b.fake.hook = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		fail(w, http.StatusForbidden, "AccessDenied")
		return true
	}
	_, _, err = b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	b.mustHave(want)
}

// A fetched file that was changed locally belongs to the user, so it is not removed.
func TestSyncKeepsWhatWasChangedHere(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	for _, name := range []string{"many/009", "many/008", "many/007"} {
		b.fake.delete("set/" + name)
	}
	edited := filepath.Join(b.dest, "many/009")
	require.NoError(t, os.WriteFile(edited, []byte("of the user"), 0o600))
	same := filepath.Join(b.dest, "many/008") // of the same length, a moment later
	require.NoError(t, os.WriteFile(same, bytes.Repeat([]byte("x"), len(want["many/008"])), 0o600))
	require.NoError(t, os.Chtimes(same, time.Now().Add(time.Minute), time.Now().Add(time.Minute)))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "many/007")))

	b.change = func(c *Config) { c.Sync = true }
	refused, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.FileExists(t, edited)
	require.FileExists(t, same)
	require.Len(t, refused, 2)
	require.Contains(t, refused[0].String(), "was changed here")
}

// Preparing a directory leaves its completion file unchanged.
func TestPrepareLeavesWhatIsComplete(t *testing.T) {
	b := newBed(t)
	b.dataset()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	before, err := os.ReadFile(filepath.Join(b.dest, destination.CompleteFile))
	require.NoError(t, err)
	require.NoError(t, Prepare(b.dest, NewProgress(ReadyAfter{})))
	after, err := os.ReadFile(filepath.Join(b.dest, destination.CompleteFile))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

func TestRefusedByName(t *testing.T) {
	b := newBed(t)
	for _, key := range []string{"set/../x", "set/a/../../y", "set//z", "set/.flexlvm/complete", "set/f", "set/f/g", "set/ok", "set/c\x01d"} {
		b.fake.put(key, []byte(key))
	}
	// The fake server is a plain handler: a ServeMux would clean such paths.
	refused, progress, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Len(t, refused, 6)
	require.EqualValues(t, 6, progress.Refused())
	b.mustHave(map[string][]byte{"ok": []byte("set/ok"), "f/g": []byte("set/f/g")})
}

func TestLinksAreNotFollowed(t *testing.T) {
	b := newBed(t)
	outside := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(b.dest, "real"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(b.dest, "out")))
	require.NoError(t, os.Symlink("real", filepath.Join(b.dest, "in")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "target"), filepath.Join(b.dest, "file")))
	for _, key := range []string{"set/out/a", "set/in/b", "set/file", "set/real/c"} {
		b.fake.put(key, []byte(key))
	}
	refused, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Len(t, refused, 2)
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoFileExists(t, filepath.Join(b.dest, "real/b"))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "out")))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "in")))
	b.mustHave(map[string][]byte{"file": []byte("set/file"), "real/c": []byte("set/real/c")})
}
