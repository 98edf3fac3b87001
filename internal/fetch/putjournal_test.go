package fetch

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// killed leaves p/a as a load does that is killed after it gave the file its name, and before it wrote its line in
// the manifest. Other objects must be there already.
func (b *bed) killed() {
	b.t.Helper()
	name := filepath.Join(b.dest, destination.ManifestFile)
	before, err := os.ReadFile(name)
	if err != nil {
		require.ErrorIs(b.t, err, os.ErrNotExist)
	}
	b.fake.put("p/broken", []byte("broken"))
	b.failOn("p/broken")
	b.change = func(c *Config) { c.Sync = true }
	_, _, err = b.run("s3://bucket/p/")
	require.ErrorContains(b.t, err, "AccessDenied")
	require.FileExists(b.t, filepath.Join(b.dest, destination.JournalFile))
	require.NoError(b.t, os.WriteFile(name, before, 0o600))
	b.fake.hook = b.takesAnything
}

func (b *bed) write(name, text string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(filepath.Join(b.dest, name), []byte(text), 0o600))
}

// The files of a killed load's last batch have their names and no lines in the manifest. They do not replace objects
// that somebody else has changed since.
func TestPutBackOfWhatAKilledLoadNamed(t *testing.T) {
	large := storetest.RandomBytes(7, wholeLimit+pieceSize+5)
	for name, c := range map[string]struct {
		content []byte
		earlier string // content of an earlier load; "" if there was none
	}{
		"small":                 {content: []byte("one")},
		"empty":                 {content: []byte{}},
		"large":                 {content: large},
		"fetched before":        {content: []byte("one"), earlier: "ten"},
		"fetched before, large": {content: large, earlier: "ten"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			if c.earlier != "" {
				b.fake.put("p/a", []byte(c.earlier))
				_, _, err := b.run("s3://bucket/p/")
				require.NoError(t, err)
			}
			b.fake.put("p/a", c.content)
			b.killed()
			b.fake.put("p/a", []byte("by somebody else"))
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "by somebody else", b.at("p/a"))

			b.write("a", "changed here")
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "changed here", b.at("p/a"))
		})
	}
}

// A file that was sent and has its received content again is not taken for unchanged.
func TestPutBackOfReceivedContentAfterAnother(t *testing.T) {
	for name, silent := range map[string]bool{"verified": false, "nobody heard how it ended": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.put("p/a", []byte("one"))
			b.killed()
			b.write("a", "two")
			var answers atomic.Bool
			answers.Store(!silent)
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if b.takesAnything(w, r, key) && !answers.Load() {
					panic(http.ErrAbortHandler)
				}
				return r.Method == http.MethodPut
			}
			if err := b.putBack(t.Context()); silent {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
			}
			answers.Store(true)
			b.write("a", "one")
			require.ErrorIs(t, b.putBack(t.Context()), store.ErrConflict)
			require.Equal(t, "two", b.at("p/a"))
			b.fake.put("p/a", []byte("one"))
			require.NoError(t, b.putBack(t.Context()))
		})
	}
}

// If the journal cannot be read as a whole, a file that is not as the rest of the records say may be unchanged.
func TestPutBackWithADamagedJournal(t *testing.T) {
	for name, damage := range map[string]func(journal string) error{
		"a damaged line": func(journal string) error {
			data, err := os.ReadFile(journal)
			if err != nil {
				return err
			}
			return os.WriteFile(journal, bytes.Replace(data, []byte(`"path":"a"`), []byte(`"path:"a"`), 1), 0o600)
		},
		"unreadable": func(journal string) error {
			if err := os.Remove(journal); err != nil {
				return err
			}
			return os.Mkdir(journal, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.set("p/a", fakeObject{data: []byte("one"), etag: "of no kind"})
			b.fake.put("p/known", []byte("known"))
			b.change = func(c *Config) { c.Exclude = []string{"a"} }
			_, _, err := b.run("s3://bucket/p/")
			require.NoError(t, err)
			b.killed()
			require.NoError(t, damage(filepath.Join(b.dest, destination.JournalFile)))
			b.write("new", "new")
			require.NoError(t, b.putBack(t.Context()), "the object has no checksum, and still the content of the file")
			require.Equal(t, "new", b.at("p/new"))

			b.fake.put("p/a", []byte("by somebody else"))
			b.fake.put("p/known", []byte("by others"))
			err = b.putBack(t.Context())
			require.ErrorIs(t, err, store.ErrConflict)
			require.ErrorContains(t, err, `1 of 3 files could not be uploaded, the first: upload "a": the object was changed since it was fetched, and it is unknown whether`)
			require.Equal(t, "by somebody else", b.at("p/a"))
			require.Equal(t, "by others", b.at("p/known"))
		})
	}
}

// Content of an object that a load received before the one that the manifest describes is a change.
func TestPutBackOfWhatWasReceivedEarlier(t *testing.T) {
	b := newBed(t)
	b.change = func(c *Config) { c.Sync = true }
	b.fake.put("p/broken", []byte("broken"))
	b.failOn("p/broken")
	for _, text := range []string{"one", "two"} {
		b.fake.put("p/a", []byte(text))
		_, _, err := b.run("s3://bucket/p/")
		require.ErrorContains(t, err, "AccessDenied")
	}
	b.fake.hook = b.takesAnything
	b.write("a", "one")
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "one", b.at("p/a"))
}

// A load that is killed at its very end leaves its journal, which the next one removes.
func TestPutBackAfterAKillAtTheEnd(t *testing.T) {
	b := newBed(t)
	b.change = func(c *Config) { c.Sync = true }
	b.fake.put("p/a", []byte("one"))
	b.fake.put("p/gone", []byte("gone"))
	b.fake.put("p/broken", []byte("broken"))
	b.failOn("p/broken")
	_, _, err := b.run("s3://bucket/p/")
	require.ErrorContains(t, err, "AccessDenied")
	name, record := filepath.Join(b.dest, destination.JournalFile), filepath.Join(b.dest, destination.CompleteFile)
	journal, err := os.ReadFile(name)
	require.NoError(t, err)
	b.fake.hook = b.takesAnything
	b.fake.delete("p/gone")
	b.fake.delete("p/broken")
	_, _, err = b.run("s3://bucket/p/")
	require.NoError(t, err)
	complete, err := os.ReadFile(record)
	require.NoError(t, err)

	load := func() {
		t.Helper()
		config := b.config("s3://bucket/p/")
		config.Sync = false
		_, err = Run(t.Context(), config, NewProgress(ReadyAfter{}))
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(name, journal, 0o600))
	require.NoError(t, os.WriteFile(record, bytes.Replace(complete, []byte(`"refused":0`), []byte(`"refused":0,"retried":true`), 1), 0o600))
	load()
	require.FileExists(t, name, "a later run may have been killed, too")
	require.NoError(t, os.WriteFile(record, complete, 0o600))
	load()
	require.NoFileExists(t, name)
	b.write("gone", "gone")
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "gone", b.at("p/gone"))
}

// On a full volume, a damaged line of the journal does not keep new files from being sent, but those that are known to be
// fetched are not sent without a note.
func TestPutBackOfAFullVolumeWithADamagedJournal(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/received", []byte("one"))
	b.killed()
	journal := filepath.Join(b.dest, destination.JournalFile)
	data, err := os.ReadFile(journal)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(journal, append([]byte("damaged\n"), data...), 0o600))
	b.write("new", "new")
	b.write("received", "changed here")
	u := &upload{PutConfig: b.back(b.dest), progress: NewProgress(ReadyAfter{})}
	require.NoError(t, u.connect(t.Context()))
	require.True(t, u.journalDamaged)
	require.NoError(t, os.Mkdir(filepath.Join(b.dest, sentFile), 0o700)) // no note can be written
	files, _, err := u.list(t.Context())
	require.NoError(t, err)
	errs := map[string]error{}
	for _, o := range files {
		errs[o.Path] = u.uploadOnce(t.Context(), o, make([]byte, maxBuffer))
	}
	require.NoError(t, errs["new"])
	require.Equal(t, "new", b.at("p/new"))
	require.ErrorContains(t, errs["received"], "must be on disk before the upload")
	require.Equal(t, "one", b.at("p/received"))
}

// The notes about objects that the manifest describes are not kept: the journal of a long load has all of its objects.
func TestPutBackKeepsFewNotes(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/a", []byte("one"))
	b.fake.put("p/large", storetest.RandomBytes(7, wholeLimit+pieceSize))
	b.fake.put("p/broken", []byte("broken"))
	b.failOn("p/broken")
	_, _, err := b.run("s3://bucket/p/")
	require.ErrorContains(t, err, "AccessDenied")
	u := &upload{PutConfig: b.back(b.dest), progress: NewProgress(ReadyAfter{})}
	require.NoError(t, u.connect(t.Context()))
	require.Empty(t, u.received)
	require.NoError(t, os.Truncate(filepath.Join(b.dest, destination.ManifestFile), 0))
	require.NoError(t, u.connect(t.Context()))
	require.Len(t, u.received, 2)
}

// A range that was lost in a power cut is received and noted again.
func TestRangesThatWereReceivedAgain(t *testing.T) {
	file := []byte("abcdef")
	noted := func(from, to int64, text string) journalNote {
		crc := store.NewCRC64()
		_, _ = crc.Write([]byte(text))
		return journalNote{Path: "a", Size: 6, Span: store.Span{Offset: from, Length: to - from}, CRC64: crc.Sum64()}
	}
	for name, c := range map[string]struct {
		notes []journalNote
		want  bool
	}{
		"all":           {[]journalNote{noted(3, 6, "def"), noted(0, 3, "abc")}, true},
		"again":         {[]journalNote{noted(0, 3, "xyz"), noted(3, 6, "def"), noted(0, 3, "abc")}, true},
		"overlapping":   {[]journalNote{noted(0, 4, "abcd"), noted(1, 2, "b"), noted(3, 6, "def")}, true},
		"a part":        {[]journalNote{noted(0, 3, "abc"), noted(4, 6, "ef")}, false},
		"not the end":   {[]journalNote{noted(0, 3, "abc"), noted(3, 5, "de")}, false},
		"changed since": {[]journalNote{noted(0, 3, "abc"), noted(3, 6, "xyz")}, false},
		"another whole": {[]journalNote{noted(0, 6, "uvwxyz")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			crc := store.NewCRC64()
			_, _ = crc.Write(file)
			is, err := (&leftovers{notes: c.notes}).describe(t.Context(), bytes.NewReader(file), crc.Sum(nil), make([]byte, 16))
			require.NoError(t, err)
			require.Equal(t, c.want, is)
		})
	}
}
