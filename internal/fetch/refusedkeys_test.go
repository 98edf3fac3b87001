package fetch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// refusing returns a bed whose directory is complete except for the key "set/x//y".
func refusing(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	for _, name := range []string{"a", "b", "x//y"} {
		b.fake.put("set/"+name, []byte(name))
	}
	b.mustRefuse("set/x//y")
	return b
}

// mustRefuse runs, and checks that exactly these keys are refused and that the message names the first.
func (b *bed) mustRefuse(keys ...string) {
	b.t.Helper()
	refused, progress, err := b.run("s3://bucket/set/")
	require.NoError(b.t, err)
	var got []string
	for _, r := range refused {
		got = append(got, r.Key)
	}
	require.Equal(b.t, keys, got)
	require.EqualValues(b.t, len(keys), progress.Refused())
	message := progress.Status(time.Now()).Message
	if len(keys) == 0 {
		require.NotContains(b.t, message, "refused")
	} else {
		require.Contains(b.t, message, refused[0].String())
	}
}

// A run lists the source again after keys were refused: they may have been removed since.
func TestRefusedKeysAreListedAgain(t *testing.T) {
	b := refusing(t)
	b.mustRefuse("set/x//y")
	b.fake.delete("set/x//y")
	b.fake.put("set/x/y", []byte("renamed"))
	b.fake.got()
	b.mustRefuse()
	require.Equal(t, map[string]int{"set/x/y": 1}, b.fake.got(), "what is here is not fetched again")
	b.mustHave(map[string][]byte{"a": []byte("a"), "b": []byte("b"), "x/y": []byte("renamed")})
	b.fake.hook = func(http.ResponseWriter, *http.Request, string) bool {
		t.Error("a complete destination asks for nothing")
		return false
	}
	b.mustRefuse()
}

// Programs may have used the directory after a run that refused keys: what they changed is not overwritten, even if a
// run is killed in between.
func TestListingAgainOverwritesNothing(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	b.fake.put("set/a", []byte("changed in the source, too"))
	b.fake.put("set/c", []byte("new in the source"))
	b.fake.put("set/d", []byte("new in the source"))
	b.edit("a", "c")
	b.failOn("set/d")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	b.mustKeep("a", "c")
	b.fake.hook = nil
	b.mustRefuse("set/a", "set/c")
	b.mustKeep("a", "c")
	require.FileExists(t, filepath.Join(b.dest, "d"))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "a")))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "c")))
	b.mustRefuse()
	b.mustHave(map[string][]byte{
		"a": []byte("changed in the source, too"), "b": []byte("b"), "c": []byte("new in the source"), "d": []byte("new in the source"),
	})
	data, err := os.ReadFile(filepath.Join(b.dest, destination.CompleteFile))
	require.NoError(t, err)
	var c complete
	require.NoError(t, json.Unmarshal(data, &c))
	require.Zero(t, c.Refused)
}

// edit changes or creates a file as a program does that uses the directory.
func (b *bed) edit(names ...string) {
	b.t.Helper()
	for _, name := range names {
		file := filepath.Join(b.dest, name)
		require.NoError(b.t, os.WriteFile(file, []byte("of the user"), 0o600))
		require.NoError(b.t, os.Chtimes(file, time.Now().Add(time.Minute), time.Now().Add(time.Minute)))
	}
}

// mustKeep checks that files are as edit has left them.
func (b *bed) mustKeep(names ...string) {
	b.t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(b.dest, name))
		require.NoError(b.t, err)
		require.Equal(b.t, "of the user", string(data), name)
	}
}

// failOn makes requests for an object fail; with ranges, only requests for these.
func (b *bed) failOn(broken string, ranges ...string) {
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key != broken || len(ranges) > 0 && !slices.Contains(ranges, r.Header.Get("Range")) {
			return false
		}
		fail(w, http.StatusForbidden, "AccessDenied")
		return true
	}
}

// The journal of a run that failed names objects whose files programs have changed, or created, since.
func TestFilesOfAFailedRetryAreNotOverwritten(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	b.fake.put("set/x/y", []byte("renamed"))
	b.fake.put("set/a", []byte("changed in the source"))
	large := storetest.RandomBytes(8, wholeLimit+store.MiB)
	b.fake.put("set/large", large)
	b.failOn("set/large", fmt.Sprintf("bytes=%d-%d", 2*spanSize(wholeLimit), len(large)-1))
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.NoFileExists(t, filepath.Join(b.dest, "large"))
	journal, err := os.ReadFile(filepath.Join(b.dest, destination.JournalFile))
	require.NoError(t, err)
	require.Contains(t, string(journal), `"large"`)
	require.Contains(t, string(journal), `"x/y"`)

	b.edit("x/y", "large")
	b.fake.hook = nil
	b.fake.got()
	b.mustRefuse("set/large")
	b.mustKeep("x/y", "large")
	require.Empty(t, b.fake.got())
	require.NoError(t, os.Remove(filepath.Join(b.dest, "large")))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "x/y")))
	b.mustRefuse()
	b.mustHave(map[string][]byte{"a": []byte("changed in the source"), "b": []byte("b"), "x/y": []byte("renamed"), "large": large})
}

// A run that is killed after it gave files their names has not entered them into the manifest. They are not mistaken for
// changed ones.
func TestRetryAdoptsFilesOfAKilledOne(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	large := storetest.RandomBytes(8, wholeLimit+store.MiB)
	b.fake.put("set/large", large)
	b.fake.put("set/a", []byte("changed in the source"))
	b.fake.put("set/z", []byte("z"))
	before, err := os.ReadFile(filepath.Join(b.dest, destination.ManifestFile))
	require.NoError(t, err)
	b.failOn("set/z")
	_, _, err = b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, destination.ManifestFile), before, 0o600))
	then := time.Now().Add(time.Minute)
	require.NoError(t, os.Chtimes(filepath.Join(b.dest, "a"), then, then), "its entry does not describe it")
	b.fake.hook = nil
	b.fake.got()
	b.mustRefuse()
	require.Equal(t, map[string]int{"set/z": 1}, b.fake.got())
	b.mustHave(map[string][]byte{"a": []byte("changed in the source"), "b": []byte("b"), "large": large, "z": []byte("z")})
}

// Programs use the directory while objects are fetched, too.
func TestRetryOverwritesNothingThatAppearsMeanwhile(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	b.fake.put("set/a", []byte("changed in the source"))
	b.fake.put("set/c", []byte("new in the source"))
	b.fake.hook = func(_ http.ResponseWriter, _ *http.Request, key string) bool {
		if name, is := strings.CutPrefix(key, "set/"); is && name != "" {
			b.edit(name)
		}
		return false
	}
	refused, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Len(t, refused, 2)
	require.Contains(t, refused[0].Reason, "was changed or created here, perhaps while its object was fetched")
	b.mustKeep("a", "c")
}

// If the record of an earlier run cannot be read, nothing is replaced: programs may have used the directory since.
func TestDamagedRecordOfAnEarlierRun(t *testing.T) {
	b := refusing(t)
	b.edit("a")
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, destination.CompleteFile), []byte(`{"source":`), 0o600))
	b.fake.got()
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "read .flexlvm/complete: ")
	require.ErrorContains(t, err, "remove .flexlvm/complete")
	require.Empty(t, b.fake.got())
	b.mustKeep("a")
}

func TestReadComplete(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer func() { _ = root.Close() }()
	c, err := readComplete(root, "complete")
	require.NoError(t, err)
	require.Nil(t, c)
	require.NoError(t, root.Mkdir("complete", 0o700)) // fails like a disk does
	_, err = readComplete(root, "complete")
	require.ErrorContains(t, err, "read complete: ")
}

// A program may keep the size of a file that it changes, and set its time back.
func TestRetryComparesContents(t *testing.T) {
	b := refusing(t)
	b.fake.delete("set/x//y")
	for _, name := range []string{"a", "b"} {
		b.fake.put("set/"+name, []byte("changed in the source"))
	}
	file := filepath.Join(b.dest, "a")
	require.NoError(t, os.WriteFile(file, []byte("A"), 0o600))
	require.NoError(t, os.Chtimes(file, time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)))
	for range 2 {
		b.mustRefuse("set/a")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "A", string(data))
		data, err = os.ReadFile(filepath.Join(b.dest, "b"))
		require.NoError(t, err)
		require.Equal(t, "changed in the source", string(data), "it was as it was fetched")
	}
}

// Without a CRC, nothing shows that a file still has the content that was fetched: it is neither replaced nor indexed.
func TestEntryWithoutACRC(t *testing.T) {
	b := refusing(t)
	b.forgetCRC()
	b.fake.delete("set/x//y")
	b.fake.put("set/a", []byte("changed in the source"))
	b.mustRefuse("set/a")
	data, err := os.ReadFile(filepath.Join(b.dest, "a"))
	require.NoError(t, err)
	require.Equal(t, "a", string(data))
	b.fake.put("set/a", []byte("a"))
	b.change = func(c *Config) { c.Index = true }
	_, _, err = b.run("s3://bucket/set/")
	require.NotErrorIs(t, err, errDisk)
	require.ErrorContains(t, err, ": the manifest has no CRC of it, so nothing shows that it is as it was fetched; fetch into an empty directory")
}

// A file that was changed here, and whose object is unchanged, is no reason to refuse the object. It stays when the run
// is repeated, however the first one ended for the process that started it.
func TestRetryCompletesBesideChangedFiles(t *testing.T) {
	b := refusing(t)
	b.edit("a")
	b.fake.delete("set/x//y")
	b.fake.put("set/x/y", []byte("renamed"))
	b.change = func(c *Config) { c.Index = true }
	for range 2 {
		refused, progress, err := b.run("s3://bucket/set/")
		require.NoError(t, err)
		require.Empty(t, refused)
		status := progress.Status(time.Now())
		require.EqualValues(t, 2, status.FilesTotal, "only what is as it was fetched counts")
		require.Equal(t, []string{"files that were changed here and stay as they are: 1"}, status.Notes)
		require.Empty(t, status.Index, "the directory does not hold the source's files")
		b.mustKeep("a")
	}
	b.fake.put("set/a", []byte("changed in the source, too"))
	b.mustRefuse("set/a")
	b.mustKeep("a")
}

// If the refused keys of the current version are gone from the source, and nothing else changed, a refresh finds that
// nothing is refused.
func TestRefreshForgetsRefusedKeysThatAreGone(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	b.fake.put("set/x//y", []byte("b"))
	for range 2 {
		status, err := b.load()
		require.NoError(t, err)
		require.EqualValues(t, 1, status.Refused)
	}
	b.fake.delete("set/x//y")
	status, err := b.load()
	require.NoError(t, err)
	require.Zero(t, status.Refused)
	require.NotContains(t, status.Message, "refused")
	require.Equal(t, "1", b.current())
}

// A refresh that only finds a key that is refused names it.
func TestRefreshNamesANewRefusedKey(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	_, err := b.load()
	require.NoError(t, err)
	b.fake.put("set/x//y", []byte("b"))
	status, err := b.load()
	require.NoError(t, err)
	require.EqualValues(t, 1, status.Refused)
	require.Contains(t, status.Message, "complete already: ")
	require.Contains(t, status.Message, "; 1 refused, the first: ")
	require.Contains(t, status.Message, "x//y")
}
