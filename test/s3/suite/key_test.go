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

// Keys that cannot be paths are refused by name, the rest goes on.
func TestHostileKeys(t *testing.T) {
	for name, key := range map[string]string{
		"up":               "../out",
		"up, deeper":       "a/../../out",
		"up and down":      "a/../a/x",
		"absolute":         "/etc/out",
		"dot":              "a/./x",
		"empty part":       "a//x",
		"ours":             ".flexlvm/complete",
		"long part":        strings.Repeat("x", 300),
		"a file as folder": "a/first/x",
		"a folder as file": "a",
		"only dots":        "..",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(some())
			b.proxy.Inject(s3.Fault{Method: "GET", Query: "list-type", Edit: s3.Entries(key)})
			o := b.fetch(b.url(""))
			require.Equal(t, 3, o.code, o.stderr)
			require.Equal(t, 1, o.result.Refused)
			require.Contains(t, o.stderr+o.result.Message, key[:min(len(key), 40)])
			require.Equal(t, some(), b.whole(some()))
			require.True(t, b.complete())
			require.NoFileExists(t, filepath.Join(b.dest, "../out"))
		})
	}
}

// Markers of folders, as consoles make them, are no files and no harm.
func TestFolderMarkers(t *testing.T) {
	b := newBed(t)
	b.put(tree{"d/": "", "d/x": "content", "e/": ""})
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"d/x": "content"}, b.files())
	require.True(t, b.complete())
}

// What stands in the destination leads nobody out of it.
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
	require.Contains(t, []int{1, 3}, o.code, o.stderr)
}
