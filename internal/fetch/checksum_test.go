package fetch

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// An ETag of 32 digits need not be a hash: if the same content arrives twice, the transfer is not at fault.
func TestETagThatIsNoHash(t *testing.T) {
	const none = "0123456789abcdef0123456789abcdef"
	small, large := []byte("content"), storetest.RandomBytes(3, wholeLimit+pieceSize)
	for name, c := range map[string]struct {
		data []byte
		etag string
		mode string
		ok   bool
	}{
		"small":                       {small, none, "", true},
		"small, if present":           {small, none, ChecksumIfPresent, true},
		"small, required":             {small, none, ChecksumRequired, false},
		"small, none":                 {small, none, ChecksumNone, true},
		"large":                       {large, none, "", true},
		"large, required":             {large, none, ChecksumRequired, false},
		"one part":                    {small, none + "-1", "", true},
		"no checksum at all":          {small, "of no kind", "", true},
		"no checksum at all, require": {small, "of no kind", ChecksumRequired, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.set("a", fakeObject{data: c.data, etag: c.etag})
			b.change = func(config *Config) { config.Checksum = c.mode }
			_, progress, err := b.run("s3://bucket/")
			got := b.fake.got()["a"]
			if !c.ok {
				require.ErrorIs(t, err, store.ErrWrongSum)
				return
			}
			require.NoError(t, err)
			require.Equal(t, store.CheckSize, b.mustHave(map[string][]byte{"a": c.data})["a"].Check)
			status := progress.Status(time.Now())
			require.Equal(t, "size: 1", status.Checks)
			if c.etag != "of no kind" && c.mode != ChecksumNone {
				require.Contains(t, strings.Join(status.Notes, ""), "1 files have an ETag that looks like a hash but does not match")
			}
			if int64(len(c.data)) < wholeLimit {
				require.LessOrEqual(t, got, 2)
			}
		})
	}
}

// If one ETag of a source is a hash, all are: one that does not match is an error.
func TestETagBesideOneThatIsAHash(t *testing.T) {
	whole := md5Hex
	parts := func(data []byte) string { return storetest.CompositeOf(data, int64(len(data))) }
	for name, etag := range map[string]struct{ good, wrong func([]byte) string }{
		"whole":                  {whole, whole},
		"in parts":               {parts, parts},
		"in parts, beside whole": {whole, parts},
		"whole, beside in parts": {parts, whole},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.set("a", fakeObject{data: []byte("content"), etag: etag.good([]byte("content"))})
			b.fake.set("b", fakeObject{data: []byte("content"), etag: etag.wrong([]byte("another"))})
			b.change = func(config *Config) { config.Parallel = 1 }
			_, _, err := b.run("s3://bucket/")
			require.ErrorIs(t, err, store.ErrWrongSum)
			require.NoFileExists(t, filepath.Join(b.dest, "b"))
		})
	}
}

// A file on disk that does not read back as received is never the source's error, however often it repeats.
func TestDiskThatIsWrong(t *testing.T) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	w := &worker{run: &run{Config: Config{Log: quiet}, progress: NewProgress(ReadyAfter{})}, buf: make([]byte, 100)}
	crc := store.NewCRC64()
	_, _ = crc.Write([]byte("content"))
	mismatch := fmt.Errorf("%w: md5", store.ErrChecksum)
	judge := func(onDisk string) error {
		file := strings.NewReader(onDisk)
		_, err := w.resolveMismatch(store.Object{Path: "a", ETag: "e"}, store.Check{Kind: store.CheckMD5}, "content", mismatch, func() error {
			return w.checkOnDisk(t.Context(), file, int64(len(onDisk)), crc.Sum(nil))
		})
		return err
	}
	require.ErrorIs(t, judge("content"), store.ErrChecksum)
	for range 3 {
		err := judge("consent")
		require.ErrorIs(t, err, errDisk)
		require.ErrorIs(t, err, store.ErrChecksum, "it is fetched again")
	}
	require.NoError(t, judge("content"))
}

// A repeated mismatch with a checksum that the source itself provides is an error.
func TestChecksumThatRepeatsItself(t *testing.T) {
	b := newBed(t)
	b.fake.set("a", fakeObject{data: []byte("content"), etag: "e", crc64: "AAAAAAAAAAA="})
	_, _, err := b.run("s3://bucket/")
	require.ErrorIs(t, err, store.ErrWrongSum)
	require.ErrorContains(t, err, "two downloads had the same content (--checksum=none accepts it)")
	require.Equal(t, 2, b.fake.got()["a"])
	b.change = func(config *Config) { config.Checksum = ChecksumNone }
	_, _, err = b.run("s3://bucket/")
	require.NoError(t, err)
}

// Some servers decompress a compressed object unless the client sends Accept-Encoding: gzip. The object
// must arrive as it is stored.
func TestObjectThatTheServerUnpacks(t *testing.T) {
	for name, size := range map[string]int64{"small": 1000, "large": wholeLimit + pieceSize} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			stored := storetest.RandomBytes(4, size)
			b.fake.put("a.gz", stored)
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if key != "a.gz" || r.Method != http.MethodGet || r.Header.Get("Accept-Encoding") == "gzip" {
					return false
				}
				w.Header().Set("ETag", `"`+md5Hex(stored)+`"`)
				w.Header().Set("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
				w.WriteHeader(http.StatusOK) // the whole object, whatever the requested range
				_, _ = w.Write([]byte(strings.Repeat("unpacked ", 1000)))
				return true
			}
			_, _, err := b.run("s3://bucket/")
			require.NoError(t, err)
			b.mustHave(map[string][]byte{"a.gz": stored})
		})
	}
}

// Objects that match none of a distribution's patterns are reported.
func TestPatternsOfWholePaths(t *testing.T) {
	b := newBed(t)
	for _, key := range []string{"cifar/batch_1.bin", "mnist/a", "other/b", "README"} {
		b.fake.put(key, []byte(key))
	}
	b.change = func(config *Config) { config.Paths, config.Elsewhere = []string{"*cifar*"}, []string{"mnist*"} }
	_, progress, err := b.run("s3://bucket/")
	require.NoError(t, err)
	b.mustHave(map[string][]byte{"cifar/batch_1.bin": []byte("cifar/batch_1.bin")})
	require.Equal(t, []string{`2 of 4 objects in s3://bucket/ match none of the patterns "*cifar*", "mnist*", so they are not fetched`}, progress.Status(time.Now()).Notes)
	b.change = func(config *Config) { config.Paths = []string{"*none*"} }
	_, _, err = b.run("s3://bucket/")
	require.ErrorContains(t, err, `none of 4 objects in s3://bucket/ is selected by "*none*"`)
}
