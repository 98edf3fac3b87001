package fetch

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// With KeepChanged, also the first run replaces nothing that was changed or created meanwhile, nor does its retry.
func TestFirstRunKeepsWhatWasChanged(t *testing.T) {
	b := newBed(t)
	b.change = func(config *Config) { config.KeepChanged = true }
	for _, name := range []string{"a", "b", "c", "d"} {
		b.fake.put("set/"+name, []byte(name))
	}
	b.failOn("set/d")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	b.edit("a")
	b.fake.hook = func(_ http.ResponseWriter, _ *http.Request, key string) bool {
		if key == "set/d" {
			b.edit("d")
		}
		return false
	}
	b.fake.got()
	b.mustRefuse("set/d")
	b.mustKeep("a", "d")
	require.Equal(t, map[string]int{"set/d": 1}, b.fake.got())
	require.NoError(t, os.Remove(filepath.Join(b.dest, "a")))
	require.NoError(t, os.Remove(filepath.Join(b.dest, "d")))
	b.fake.hook = nil
	b.mustRefuse()
	b.mustHave(map[string][]byte{"a": []byte("a"), "b": []byte("b"), "c": []byte("c"), "d": []byte("d")})
}

// A run with KeepChanged adopts the files that a killed run has named and not entered into the manifest.
func TestFirstRunAdoptsFilesOfAKilledOne(t *testing.T) {
	b := newBed(t)
	b.change = func(config *Config) { config.KeepChanged = true }
	large := storetest.RandomBytes(8, wholeLimit+store.MiB)
	b.fake.put("set/a", []byte("a"))
	b.fake.put("set/large", large)
	b.fake.put("set/z", []byte("z"))
	b.failOn("set/z")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.NoError(t, os.Truncate(filepath.Join(b.dest, destination.ManifestFile), 0))
	b.fake.hook = nil
	b.fake.got()
	b.mustRefuse()
	require.Equal(t, map[string]int{"set/z": 1}, b.fake.got())
	b.mustHave(map[string][]byte{"a": []byte("a"), "large": large, "z": []byte("z")})
}

// The object of a file that a killed run has named and not entered into the manifest may change before the retry, and the
// retry may be killed, too. The file is not mistaken for a program's, and is replaced; one that a program has changed stays.
func TestRetryReplacesFilesOfAKilledOne(t *testing.T) {
	b := newBed(t)
	b.change = func(config *Config) { config.KeepChanged = true }
	large := storetest.RandomBytes(8, wholeLimit+store.MiB)
	for name, data := range map[string][]byte{"a": []byte("a"), "b": []byte("b"), "large": large, "z": []byte("z")} {
		b.fake.put("set/"+name, data)
	}
	b.failOn("set/z")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.FileExists(t, filepath.Join(b.dest, "large"))
	require.NoError(t, os.Truncate(filepath.Join(b.dest, destination.ManifestFile), 0))

	b.edit("b")
	large = storetest.RandomBytes(9, int64(len(large)))
	b.fake.put("set/a", []byte("changed in the source"))
	b.fake.put("set/b", []byte("changed in the source"))
	b.fake.put("set/large", large)
	b.failOn("set/large", fmt.Sprintf("bytes=%d-%d", 2*spanSize(wholeLimit), len(large)-1))
	refused, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.Len(t, refused, 1)
	require.Equal(t, "set/b", refused[0].Key)
	b.fake.hook = nil
	b.mustRefuse("set/b")
	b.mustKeep("b")
	require.NoError(t, os.Remove(filepath.Join(b.dest, "b")))
	b.mustRefuse()
	b.mustHave(map[string][]byte{"a": []byte("changed in the source"), "b": []byte("changed in the source"), "large": large, "z": []byte("z")})
}

// The journal still describes content that a later run has replaced. A program that restores it has changed the file.
func TestRestoredContentIsNotReplaced(t *testing.T) {
	b := newBed(t)
	b.change = func(config *Config) { config.KeepChanged = true }
	b.fake.put("set/z", []byte("z"))
	b.failOn("set/z")
	for _, data := range []string{"first", "second"} {
		b.fake.put("set/a", []byte(data))
		_, _, err := b.run("s3://bucket/set/")
		require.ErrorContains(t, err, "AccessDenied")
		got, err := os.ReadFile(filepath.Join(b.dest, "a"))
		require.NoError(t, err)
		require.Equal(t, data, string(got))
	}
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte("first"), 0o600))
	b.fake.put("set/a", []byte("third"))
	b.fake.hook = nil
	b.mustRefuse("set/a")
	got, err := os.ReadFile(filepath.Join(b.dest, "a"))
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
}

// The journal also describes content that was received and refused. A program that puts the same there has created the
// file.
func TestRefusedContentIsNotReplaced(t *testing.T) {
	b := newBed(t)
	b.change = func(config *Config) { config.KeepChanged = true }
	b.fake.put("set/a", []byte("first"))
	b.fake.put("set/z", []byte("z"))
	b.failOn("set/z")
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	fail := b.fake.hook
	b.fake.put("set/a", []byte("second"))
	b.fake.hook = func(w http.ResponseWriter, req *http.Request, key string) bool {
		if key == "set/a" {
			b.edit("a")
		}
		return fail(w, req, key)
	}
	refused, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "AccessDenied")
	require.Len(t, refused, 1)
	b.mustKeep("a")
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte("second"), 0o600))
	b.fake.put("set/a", []byte("third"))
	b.fake.hook = nil
	b.mustRefuse("set/a")
	got, err := os.ReadFile(filepath.Join(b.dest, "a"))
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
}

// A program may take away the permission to read a fetched file. Only its object is refused.
func TestFileThatMayNotBeRead(t *testing.T) {
	b := refusing(t)
	d, err := destination.Open(b.dest)
	require.NoError(t, err)
	defer d.Close()
	m, err := openManifest(d)
	require.NoError(t, err)
	defer m.Close()
	r := &run{Config: b.config("s3://bucket/set/"), dest: d, manifest: m, progress: NewProgress(ReadyAfter{})}
	e := m.entries["a"]
	require.NoError(t, os.Chmod(filepath.Join(b.dest, "a"), 0))

	back := asNobody()
	_, err = r.checkReplaceable(t.Context(), e.object())
	back()
	require.ErrorIs(t, err, store.ErrInTheWay)
	require.ErrorContains(t, err, "a is in the way: it may not be read, so whether it was changed here is not known; ")
	require.Equal(t, store.Denied, store.Classify(err))

	e.ETagMismatch = true
	m.entries["a"] = e
	r.progress.countVerified(store.CheckMD5)
	back = asNobody()
	o := e.object()
	o.Key = "set/a"
	err = r.rejectMismatches(t.Context(), []store.Object{o})
	back()
	require.NoError(t, err)
	require.Empty(t, r.failures)
	require.Len(t, r.refused, 1)
	require.Equal(t, "set/a", r.refused[0].Key)
	require.FileExists(t, filepath.Join(b.dest, "a"))
}
