package fetch

import (
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

// withMismatch stores two objects: the content of "a" does not match its ETag, which looks like an MD5, and "b", which is
// fetched after it, shows that the source's ETags are MD5s.
func withMismatch(b *bed) {
	b.fake.set("set/a", fakeObject{data: []byte("damaged"), etag: md5Hex([]byte("content"))})
	b.fake.set("set/b", fakeObject{data: []byte("b"), etag: md5Hex([]byte("b"))})
	change := b.change
	b.change = func(config *Config) {
		change(config)
		config.Parallel = 1
	}
}

// repair makes the content of "a" match its ETag.
func repair(b *bed) {
	b.fake.set("set/a", fakeObject{data: []byte("content"), etag: md5Hex([]byte("content"))})
}

// mustReject runs, and checks that "a" is rejected and removed, and that the file beside it stays.
func (b *bed) mustReject() {
	b.t.Helper()
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorIs(b.t, err, store.ErrWrongSum)
	require.ErrorContains(b.t, err, `"set/a"`)
	var final *store.Error
	require.ErrorAs(b.t, err, &final)
	require.False(b.t, final.Retryable)
	b.mustHave(map[string][]byte{"b": []byte("b")})
}

// onceAccepted calls do, and serves "b", when the manifest has "a".
func (b *bed) onceAccepted(do func()) {
	b.fake.hook = func(_ http.ResponseWriter, _ *http.Request, key string) bool {
		if key != "set/b" {
			return false
		}
		for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if m, _ := readManifest(b.dest); m["a"].ETagMismatch {
				do()
				return false
			}
		}
		b.t.Error("the manifest does not have a")
		return false
	}
}

// If an ETag turns out to be a hash, objects whose ETags did not match are rejected, although they were accepted before.
// Each later run ends the same way, until the source is repaired.
func TestMismatchBeforeAMatch(t *testing.T) {
	b := newBed(t)
	withMismatch(b)
	for range 2 {
		b.mustReject()
	}
	repair(b)
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, store.CheckMD5, b.mustHave(map[string][]byte{"a": []byte("content"), "b": []byte("b")})["a"].Check)
}

// The same, of an object that is fetched in ranges.
func TestMismatchOfALargeObjectBeforeAMatch(t *testing.T) {
	b := newBed(t)
	withMismatch(b)
	b.fake.set("set/a", fakeObject{data: storetest.RandomBytes(3, wholeLimit+store.MiB), etag: md5Hex([]byte("content"))})
	b.change = func(config *Config) { config.Parallel = 2 }
	b.onceAccepted(func() {})
	b.mustReject()
}

// An object that a run accepted before it was killed, or failed, is rejected by the run in which another object matches.
func TestMismatchOfAnEarlierRun(t *testing.T) {
	for name, killed := range map[string]bool{"in the manifest": false, "in the journal": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			withMismatch(b)
			b.failOn("set/b")
			_, _, err := b.run("s3://bucket/set/")
			require.ErrorContains(t, err, "AccessDenied")
			require.True(t, b.mustHave(map[string][]byte{"a": []byte("damaged")})["a"].ETagMismatch)
			if killed {
				require.NoError(t, os.Truncate(filepath.Join(b.dest, destination.ManifestFile), 0))
			}
			b.fake.hook = nil
			b.fake.got()
			b.mustReject()
			require.Equal(t, map[string]int{"set/b": 1}, b.fake.got())
		})
	}
}

// --checksum=none accepts any content.
func TestMismatchIsAcceptedWithoutChecksums(t *testing.T) {
	b := newBed(t)
	withMismatch(b)
	b.failOn("set/b")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	b.fake.hook = nil
	b.change = func(config *Config) { config.Checksum = ChecksumNone }
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.mustHave(map[string][]byte{"a": []byte("damaged"), "b": []byte("b")})
}

// A file that was changed here is not removed, even if its size and its time do not show the change.
func TestMismatchThatWasChangedHere(t *testing.T) {
	b := newBed(t)
	withMismatch(b)
	b.onceAccepted(func() {
		file := filepath.Join(b.dest, "a")
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte("by hand"), 0o600))
		require.NoError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	})
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.mustHave(map[string][]byte{"a": []byte("by hand"), "b": []byte("b")})
}

// A later version takes no file from the one before whose object it has rejected: the object is fetched again.
func TestMismatchInThePreviousVersion(t *testing.T) {
	b := newVersionBed(t)
	withMismatch(b.bed)
	b.fake.delete("set/b")
	_, err := b.load()
	require.NoError(t, err, "nothing shows yet that ETags are hashes")
	b.fake.set("set/b", fakeObject{data: []byte("b"), etag: md5Hex([]byte("b"))})
	for range 2 {
		_, err = b.load()
		require.ErrorIs(t, err, store.ErrWrongSum)
		require.ErrorContains(t, err, `"set/a"`)
		require.Equal(t, "1", b.current())
		b.holds("1", map[string][]byte{"a": []byte("damaged")})
	}
	repair(b.bed)
	_, err = b.load()
	require.NoError(t, err)
	require.Equal(t, "2", b.current())
	b.holds("2", map[string][]byte{"a": []byte("content"), "b": []byte("b")})
}
