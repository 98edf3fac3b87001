package fetch

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// putBack uploads the directory that was fetched from s3://bucket/p/ back to it.
func (b *bed) putBack(ctx context.Context) error {
	b.t.Helper()
	target, err := ParseSource("s3://bucket/p/")
	require.NoError(b.t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	_, err = Put(ctx, PutConfig{Dir: b.dest, Target: target, Back: true, S3: s3store.Config{Endpoint: b.fake.URL, Attempts: 1, Stall: patient}, Memory: 64 * store.MiB, Log: quiet}, NewProgress(ReadyAfter{}))
	return err
}

func (b *bed) at(key string) string {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	return string(b.fake.objects[key].data)
}

// An upload replaces the fetched object. A file that has its fetched content again must be sent again.
func TestFileThatIsAgainAsItCame(t *testing.T) {
	for name, again := range map[string]func(b *bed, dir string, restore func()){
		"one mirror": func(b *bed, dir string, restore func()) {
			p, end := b.mirroring(dir)
			synced(b.t, p)
			require.Equal(b.t, "two", b.at("p/a"))
			restore()
			synced(b.t, p)
			end()
		},
		"another mirror": func(b *bed, dir string, restore func()) {
			p, end := b.mirroring(dir)
			synced(b.t, p)
			end()
			restore()
			p, end = b.mirroring(dir)
			synced(b.t, p)
			end()
		},
		"the last upload": func(b *bed, dir string, restore func()) {
			p, end := b.mirroring(dir)
			synced(b.t, p)
			end()
			restore()
			require.NoError(b.t, b.putBack(b.t.Context()))
		},
		"nobody heard how it ended": func(b *bed, _ string, restore func()) {
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if b.takesAnything(w, r, key) {
					panic(http.ErrAbortHandler)
				}
				return false
			}
			require.Error(b.t, b.putBack(b.t.Context()))
			require.Equal(b.t, "two", b.at("p/a"))
			restore()
			b.fake.hook = b.takesAnything
			require.NoError(b.t, b.putBack(b.t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.put("p/a", []byte("one"))
			_, _, err := b.run("s3://bucket/p/")
			require.NoError(t, err)
			b.fake.hook = b.takesAnything
			write := func(text string) {
				require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte(text), 0o600))
			}
			write("two")
			again(b, b.dest, func() { write("one") })
			require.Equal(t, "one", b.at("p/a"))
		})
	}
}

// Notes about an upload do not apply to a file that was fetched again since: it counts as unchanged.
func TestFileThatIsFetchedAnew(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/a", []byte("one"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	b.fake.hook = b.takesAnything
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte("two"), 0o600))
	require.NoError(t, b.putBack(t.Context()))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "a")))
	_, _, err = b.run("s3://bucket/p/")
	require.NoError(t, err)
	b.fake.put("p/a", []byte("by somebody else"))
	require.NoError(t, b.putBack(t.Context()))
	require.Equal(t, "by somebody else", b.at("p/a"))
}

// Unchanged files are not uploaded, whatever checksum their source provides, or none.
func TestUntouchedFilesStayThereWhateverTheirChecksum(t *testing.T) {
	data := storetest.RandomBytes(5, 300)
	large := storetest.RandomBytes(6, wholeLimit+pieceSize)
	for name, o := range map[string]fakeObject{
		"none":            {data: data, etag: "of no kind"},
		"in parts":        {data: data, etag: storetest.CompositeOf(data, 100, 200), parts: []int64{100, 200}},
		"in one part":     {data: data, etag: storetest.CompositeOf(data, 300)},
		"large, none":     {data: large, etag: "of no kind"},
		"large, in parts": {data: large, etag: storetest.CompositeOf(large, 8*store.MiB)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.set("p/a", o)
			_, _, err := b.run("s3://bucket/p/")
			require.NoError(t, err)
			b.fake.put("p/a", []byte("by somebody else"))
			b.fake.hook = b.takesAnything
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "by somebody else", b.at("p/a"))
		})
	}
}

// An entry without a CRC of the received content proves nothing, even if it has another checksum. If it is unknown whether
// the file or the object changed, nothing is overwritten, and the conflict is reported.
func TestManifestThatDoesNotSayWhatCame(t *testing.T) {
	theirs := &fakeObject{data: []byte("theirs"), etag: "t"}
	for name, c := range map[string]struct {
		here     string // "" leaves the file unchanged
		there    *fakeObject
		gone     bool
		want     string
		conflict bool
	}{
		"untouched":             {want: "what came"},
		"changed here":          {here: "What came", want: "What came"},
		"another size here":     {here: "longer than that", there: theirs, want: "longer than that"},
		"changed there":         {there: theirs, want: "theirs", conflict: true},
		"changed on both sides": {here: "What came", there: theirs, want: "theirs", conflict: true},
		"removed there":         {gone: true, want: "what came"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.put("p/a", []byte("what came"))
			_, _, err := b.run("s3://bucket/p/")
			require.NoError(t, err)
			b.forgetCRC()
			if c.here != "" {
				require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte(c.here), 0o600))
			}
			if c.there != nil {
				b.fake.set("p/a", *c.there)
			}
			if c.gone {
				b.fake.delete("p/a")
			}
			b.fake.hook = b.takesAnything
			err = b.putBack(t.Context())
			if c.conflict {
				require.ErrorContains(t, err, `"a": the object was changed since it was fetched, and it is unknown whether the file was changed here: remove the object to upload the file`)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, c.want, b.at("p/a"))
		})
	}
}

// Without a manifest, which a consumer may have removed, it is unknown which files changed: objects that
// differ are a conflict and stay, and missing objects are uploaded.
func TestManifestThatIsNotThere(t *testing.T) {
	for name, crc := range map[string]bool{"checksums": true, "no checksums": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			put := func(key, text string) {
				o := fakeObject{data: []byte(text), etag: "of no kind"}
				if b.fake.set(key, o); crc {
					b.fake.put(key, []byte(text))
				}
			}
			write := func(name, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(b.dest, name), []byte(text), 0o600))
			}
			put("p/same", "same")
			put("p/theirs", "what came")
			_, _, err := b.run("s3://bucket/p/")
			require.NoError(t, err)
			require.NoError(t, os.RemoveAll(filepath.Join(b.dest, store.ControlDir)))
			put("p/theirs", "by others")
			write("new", "one")
			b.fake.hook = b.takesAnything
			for _, text := range []string{"one", "two"} { // an object that the upload itself has sent may be replaced
				write("new", text)
				err = b.putBack(t.Context())
				require.ErrorIs(t, err, store.ErrConflict)
				require.ErrorContains(t, err, `1 of 3 files could not be uploaded, the first: upload "theirs": the object was changed since it was fetched, or the file was, and .flexlvm/manifest.jsonl`)
				require.Equal(t, "by others", b.at("p/theirs"))
				require.Equal(t, text, b.at("p/new"))
			}
			b.fake.delete("p/theirs")
			require.NoError(t, b.putBack(t.Context()))
			require.Equal(t, "what came", b.at("p/theirs"))
		})
	}
}

// A mirror works without the manifest: it may replace objects that it has sent or found identical to the
// file, as long as nobody else has written them since.
func TestMirrorWithoutAManifest(t *testing.T) {
	begin := func(t *testing.T) (*bed, func(text string)) {
		b := newBed(t)
		b.fake.put("p/a", []byte("one"))
		_, _, err := b.run("s3://bucket/p/")
		require.NoError(t, err)
		b.fake.hook = b.takesAnything
		return b, func(text string) {
			require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte(text), 0o600))
		}
	}
	lose := func(b *bed) { require.NoError(b.t, os.RemoveAll(filepath.Join(b.dest, store.ControlDir))) }
	t.Run("lost while it runs", func(t *testing.T) {
		b, write := begin(t)
		p, end := b.mirroring(b.dest)
		synced(t, p)
		lose(b)
		write("two")
		synced(t, p)
		require.Equal(t, "two", b.at("p/a"))
		end()
		p, end = b.mirroring(b.dest)
		synced(t, p)
		write("three")
		synced(t, p)
		require.Equal(t, "three", b.at("p/a"))
		end()
	})
	t.Run("lost before", func(t *testing.T) {
		b, write := begin(t)
		lose(b)
		p, end := b.mirroring(b.dest)
		synced(t, p)
		write("two")
		synced(t, p)
		require.Equal(t, "two", b.at("p/a"))
		end()
	})
}

// An object that conflicts with a file is read only once.
func TestConflictIsReadOnce(t *testing.T) {
	b := newBed(t)
	b.fake.put("p/a", []byte("one"))
	_, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(b.dest, store.ControlDir)))
	b.fake.set("p/a", fakeObject{data: []byte("who"), etag: "of no kind"})
	b.fake.got()
	u := &upload{PutConfig: b.back(b.dest), progress: NewProgress(ReadyAfter{})}
	require.NoError(t, u.connect(t.Context()))
	for range 3 {
		files, _, err := u.list(t.Context())
		require.NoError(t, err)
		require.Len(t, files, 1)
		require.ErrorIs(t, u.uploadOnce(t.Context(), files[0], make([]byte, maxBuffer)), store.ErrConflict)
	}
	require.Equal(t, map[string]int{"p/a": 1}, b.fake.got())

	u.compare(store.Object{Path: "a"}, store.Object{}, true)
	require.ErrorIs(t, u.checkReplace("a", store.Object{}, nil), store.ErrConflict, "nothing names the object that was equal")
}

// forgetCRC removes the CRC of the received content from the entries of the manifest.
func (b *bed) forgetCRC() {
	b.t.Helper()
	name := filepath.Join(b.dest, destination.ManifestFile)
	text, err := os.ReadFile(name)
	require.NoError(b.t, err)
	changed := regexp.MustCompile(`,"crc64":"[^"]*"`).ReplaceAll(text, nil)
	require.NotEqual(b.t, text, changed)
	require.NoError(b.t, os.WriteFile(name, changed, 0o600))
}
