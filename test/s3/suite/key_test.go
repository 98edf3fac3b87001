//go:build s3

package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

// Keys that cannot be paths are refused by name, and all other keys are fetched.
func TestHostileKeys(t *testing.T) {
	for name, c := range map[string]struct {
		key     string
		refused int
	}{
		"up":               {"../out", 1},
		"up, deeper":       {"a/../../out", 1},
		"up and down":      {"a/../a/x", 1},
		"absolute":         {"/etc/out", 1},
		"dot":              {"a/./x", 1},
		"empty part":       {"a//x", 1},
		"ours":             {".flexlvm/complete", 1},
		"long part":        {strings.Repeat("x", 300), 1},
		"only dots":        {"..", 1},
		"control":          {"a\tb", 1},
		"a folder as file": {"a", 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(some())
			b.proxy.Inject(s3.Fault{Method: "GET", Query: "list-type", Edit: s3.Entries(c.key)})
			o := b.fetch(b.url(""))
			require.Equal(t, 3, o.code, o.stderr)
			require.Equal(t, c.refused, o.result.Refused)
			require.Contains(t, o.stderr+o.result.Message, strings.Split(c.key[:min(len(c.key), 40)], "\t")[0])
			require.Equal(t, some(), b.whole(some()))
			require.True(t, b.complete())
			require.NoFileExists(t, filepath.Join(b.dest, "../out"))
		})
	}
}

// Of a file and a folder with the same name, the folder wins, because it may hold many files.
func TestFileAndFolderOfOneName(t *testing.T) {
	b := newBed(t)
	b.put(tree{"x/1": "one", "x/2": "two", "y": "why"})
	b.proxy.Inject(s3.Fault{Method: "GET", Query: "list-type", Edit: s3.Entries("x")})
	o := b.fetch(b.url(""))
	require.Equal(t, 3, o.code, o.stderr)
	require.Equal(t, 1, o.result.Refused)
	require.Equal(t, tree{"x/1": "one", "x/2": "two", "y": "why"}, b.files())
}

// Folder markers, as consoles create them, are ignored.
func TestFolderMarkers(t *testing.T) {
	b := newBed(t)
	b.put(tree{"d/": "", "d/x": "content", "e/": ""})
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"d/x": "content"}, b.files())
	require.True(t, b.complete())
}

// Links in the destination do not lead the loader outside of it.
func TestLinksInTheDestination(t *testing.T) {
	b := newBed(t)
	b.put(tree{"dir/x": "theirs", "file": "theirs", "fine": "content"})
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(b.dest, "dir")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "precious"), filepath.Join(b.dest, "file")))
	o := b.fetch(b.url(""))
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, left, 1)
	content, err := os.ReadFile(filepath.Join(outside, "precious"))
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
	got, err := os.ReadFile(filepath.Join(b.dest, "fine"))
	require.NoError(t, err, "the rest goes on: %s", o.stderr)
	require.Equal(t, "content", string(got))
	require.Equal(t, 3, o.code, o.stderr)
	require.Equal(t, 1, o.result.Refused, "of the key below the link")
	got, err = os.ReadFile(filepath.Join(b.dest, "file"))
	require.NoError(t, err)
	require.Equal(t, "theirs", string(got), "it takes the link's place")
}
