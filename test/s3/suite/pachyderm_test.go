//go:build s3

package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

// gateway returns a bed whose source is Pachyderm.
func gateway(t *testing.T) (*bed, *s3.Pachyderm, []string) {
	t.Helper()
	b := newBed(t)
	p := server.Pachyderm()
	t.Cleanup(p.Close)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(p.Token+"\n"), 0o600))
	b.env = nil
	return b, p, []string{"--endpoint", p.Endpoint, "--credentials-dir", dir}
}

func bytesOf(files tree) map[string][]byte {
	content := map[string][]byte{}
	for path, text := range files {
		content[path] = []byte(text)
	}
	return content
}

func TestPachyderm(t *testing.T) {
	b, p, flags := gateway(t)
	old := tree{"dir/a": "old"}
	first, err := p.Commit(b.ctx, "default", "images", "master", bytesOf(old))
	require.NoError(t, err)
	now := tree{"dir/a": noise(80, 12<<20), "dir/b c": "two"}
	_, err = p.Commit(b.ctx, "default", "images", "master", bytesOf(tree{"dir/a": now["dir/a"], "dir/b c": now["dir/b c"], "other": "x"}))
	require.NoError(t, err)
	_, err = p.Commit(b.ctx, "vision", "images", "dev", bytesOf(tree{"dir/z": "theirs"}))
	require.NoError(t, err)

	for source, want := range map[string]tree{
		"pachyderm://images@master/dir/":               {"a": now["dir/a"], "b c": "two"},
		"pachyderm://images@" + first + "/dir/":        {"a": "old"},
		"pachyderm://images@master=" + first + "/dir/": {"a": "old"},
		"pachyderm://vision/images@dev/dir/":           {"z": "theirs"},
		"pachyderm://images@master/dir/*c":             {"b c": "two"},
		"pachyderm://images@master/other":              {"other": "x"},
	} {
		b.dest = filepath.Join(t.TempDir(), "dest")
		require.NoError(t, os.Mkdir(b.dest, 0o755))
		o := b.launch(append(flags, source, b.dest)...).wait()
		require.Zero(t, o.code, "%s: %s", source, o.stderr)
		require.Len(t, b.whole(want), len(want), source)
		require.True(t, b.complete())
		for _, e := range b.manifest() {
			require.Equal(t, "size", e.Check, "the gateway has no checksum that a client could compute")
			require.Len(t, e.ETag, 64)
		}
	}
}

func TestPachydermRefuses(t *testing.T) {
	b, p, flags := gateway(t)
	_, err := p.Commit(b.ctx, "default", "images", "master", bytesOf(tree{"a": "x"}))
	require.NoError(t, err)
	o := b.launch(append(flags, "pachyderm://images@nobranch/", b.dest)...).wait()
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "nobranch")
	p.Token = "another"
	b.refused(b.launch(append(flags, "pachyderm://images@master/", b.dest)...).wait(), "credentials", "another")
}

// The gateway supports only version 1 of listings, with 1000 keys a page.
func TestPachydermListsPages(t *testing.T) {
	b, p, flags := gateway(t)
	p.PageSize = 10
	want := tree{}
	for i := range 35 {
		want[fmt.Sprintf("%02d", i)] = fmt.Sprint(i)
	}
	_, err := p.Commit(b.ctx, "default", "images", "master", bytesOf(want))
	require.NoError(t, err)
	o := b.launch(append(flags, "pachyderm://images@master/", b.dest)...).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
}

// Requests that are cut off midway are resumed.
func TestPachydermCutsRequests(t *testing.T) {
	b, p, flags := gateway(t)
	p.Patience = 5 * time.Second
	want := tree{"big": noise(81, 12<<20)}
	_, err := p.Commit(b.ctx, "default", "images", "master", bytesOf(want))
	require.NoError(t, err)
	o := b.launch(append(flags, "--bandwidth", "1Mi", "--attempts", "20", "pachyderm://images@master/", b.dest)...).wait()
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(want), 1)
}

// Without a token, requests are anonymous, as VCK's were, and a single file gets the name that is
// given.
func TestPachydermWithoutToken(t *testing.T) {
	b, p, _ := gateway(t)
	_, err := p.Commit(b.ctx, "default", "images", "master", bytesOf(tree{"s3/test": "content"}))
	require.NoError(t, err)
	const source = "pachyderm://images@master/s3/test"
	o := b.launch("--endpoint", p.Endpoint, "--anonymous", "--name=out/test", source, b.dest).wait()
	require.Equal(t, 1, o.code, "it wants a token: %s", o.stderr)
	p.Token = ""
	o = b.launch("--endpoint", p.Endpoint, "--anonymous", "--name=out/test", source, b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	b.whole(tree{"out/test": "content"})
	require.Equal(t, 2, b.launch("--endpoint", p.Endpoint, "--anonymous", "--name=x", "pachyderm://images@master/s3/", b.dest).wait().code)
}
