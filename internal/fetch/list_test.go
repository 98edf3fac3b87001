package fetch

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// listings are source listings without a usable file: keys are the objects left in the source when set/a
// is deleted, path is the selection, and want is the expected error.
var listings = map[string]struct {
	keys []string
	path string
	want string
}{
	"nothing":                     {nil, "", "no files to fetch: none of 0 objects"},
	"mark of the prefix":          {[]string{"set/"}, "", "only mark folders"},
	"marks of folders":            {[]string{"set/", "set/d/", "set/d/e/"}, "", "no files to fetch: of 3 objects"},
	"mark, and not wanted":        {[]string{"set/", "set/b"}, "a", `none of 2 objects in s3://bucket/set/ is selected by "a"`},
	"mark that is wanted":         {[]string{"set/a/", "set/b"}, "a*", `those that are selected by "a*" only mark folders`},
	"all is refused":              {[]string{"set/../b", "set/x//y"}, "", `can be a file; the first: "set/../b"`},
	"mark, and the rest is":       {[]string{"set/", "set/d/", "set/a//b"}, "", `"set/a//b": the name has an empty path element`},
	"a mark is in a file's place": {[]string{"set/a/", "set/a"}, "", `"set/a": other objects need a directory`},
}

// emptied deletes set/a from the source, and stores objects under keys there.
func (b *bed) emptied(keys []string) {
	b.fake.delete("set/a")
	for _, key := range keys {
		data := []byte("data")
		if key[len(key)-1] == '/' {
			data = nil
		}
		b.fake.put(key, data)
	}
}

func requireFinal(t *testing.T, err error) {
	t.Helper()
	var failed *store.Error
	require.True(t, errors.As(err, &failed))
	require.False(t, failed.Retryable)
}

// A listing without a file is a permanent error: it removes nothing, and completes no destination.
func TestListingWithoutAFile(t *testing.T) {
	content := []byte("content")
	for name, c := range listings {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.change = func(config *Config) { config.Sync = true }
			b.fake.put("set/a", content)
			_, _, err := b.run("s3://bucket/set/")
			require.NoError(t, err)
			b.emptied(c.keys)
			b.change = func(config *Config) {
				config.Sync = true
				if c.path != "" {
					config.Paths = []string{c.path}
				}
			}
			_, _, err = b.run("s3://bucket/set/")
			require.ErrorContains(t, err, c.want)
			requireFinal(t, err)
			b.mustHave(map[string][]byte{"a": content})
			require.FileExists(t, filepath.Join(b.dest, destination.CompleteFile), "nothing was begun")

			b.dest += "2"
			_, _, err = b.run("s3://bucket/set/")
			require.ErrorContains(t, err, c.want)
			require.NoFileExists(t, filepath.Join(b.dest, destination.CompleteFile))
		})
	}
}

func TestVersionOfAListingWithoutAFile(t *testing.T) {
	content := []byte("content")
	for name, c := range listings {
		if c.path != "" {
			continue // versionBed selects all
		}
		t.Run(name, func(t *testing.T) {
			b := newVersionBed(t)
			b.fake.put("set/a", content)
			_, err := b.load()
			require.NoError(t, err)
			b.emptied(c.keys)
			_, err = b.load()
			require.ErrorContains(t, err, c.want)
			require.Equal(t, "1", b.current())
			b.holds("1", map[string][]byte{"a": content})
		})
	}
}

// The first version of an empty folder fails, and is neither complete nor ready.
func TestFirstVersionOfAnEmptyFolder(t *testing.T) {
	b := newVersionBed(t)
	b.fake.put("set/", nil)
	config := b.config("s3://bucket/set/")
	config.Dest = b.root
	progress := NewProgress(ReadyAfter{})
	_, err := RunVersions(t.Context(), b.root, config, progress)
	require.ErrorContains(t, err, "only mark folders")
	require.False(t, progress.Ready())
	require.Equal(t, protocol.StateFailed, progress.Status(time.Now()).State)
	require.NoFileExists(t, b.version("1", destination.CompleteFile))
}
