//go:build s3

package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

// domain is the domain of virtual-hosted buckets.
const domain = "s3.test"

func TestPrefix(t *testing.T) {
	b := newBed(t)
	want := tree{
		"a": "one", "dir/b": "two", "dir/deep/er/c": "three", "empty": "",
		"big": noise(1, 20<<20), "ünï çødé/日本": "unicode", "two  spaces": "spaces",
		"$(touch pwned);`id`|&&'\"": "shell", "-rf": "dash", "*?[a]": "glob", "100%25+x=1&y#z": "url",
	}
	there := tree{"settle": "not in the prefix", "other/x": "nor this"}
	for key, content := range want {
		there["set/"+key] = content
	}
	b.put(there)
	o := b.fetch(b.url("set/"))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
	require.True(t, b.complete())
	require.Equal(t, "complete", o.result.State)
	require.Equal(t, [2]int{len(want), len(want)}, [2]int{o.result.FilesDone, o.result.FilesTotal})
	require.Equal(t, o.result.BytesTotal, o.result.BytesDone)
	require.True(t, o.result.Ready)
	all := b.manifest()
	require.Len(t, all, len(want))
	for _, e := range all {
		require.Equal(t, int64(len(want[e.Path])), e.Bytes, e.Path)
		require.Equal(t, "crc64nvme", e.Check, e.Path)
		require.NotEmpty(t, e.Checksum)
		require.False(t, e.FetchedAt.IsZero())
	}
}

func TestWhatIsChecked(t *testing.T) {
	b := newBed(t)
	big := noise(2, 12<<20)
	for key, checksummed := range map[string]bool{"parts-crc": true, "parts": false} {
		_, err := server.PutParts(b.ctx, b.bucket, key, strings.NewReader(big), int64(len(big)), 5<<20, checksummed)
		require.NoError(t, err)
	}
	_, err := server.Put(b.ctx, b.bucket, "plain", []byte(big), false)
	require.NoError(t, err)
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"parts-crc": big, "parts": big, "plain": big}, b.files())
	checks := map[string]string{}
	for _, e := range b.manifest() {
		checks[e.Path] = e.Check
	}
	require.Equal(t, map[string]string{"parts-crc": "crc64nvme", "parts": "composite-etag", "plain": "md5"}, checks)
}

func TestOneObject(t *testing.T) {
	b := newBed(t)
	b.put(tree{"dir/name": "content", "dir/name2": "other"})
	o := b.fetch(b.url("dir/name"))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"name": "content"}, b.files())
	require.True(t, b.complete())
}

func TestMissing(t *testing.T) {
	b := newBed(t)
	b.put(tree{"dir/name": "content"})
	for _, source := range []string{b.url("dir/nam"), b.url("dir"), b.url("nodir/"), b.url("*.csv")} {
		o := b.fetch(source)
		require.Equal(t, 1, o.code, "%s: %s", source, o.stderr)
		require.Contains(t, o.result.Message, source[strings.LastIndex(source, "/")+1:])
		require.Equal(t, "failed", o.result.State)
		require.False(t, o.result.Retryable)
		require.Empty(t, b.files())
		require.False(t, b.complete())
	}
}

func TestGlob(t *testing.T) {
	for name, c := range map[string]struct {
		pattern string
		want    tree
	}{
		"star":  {"a/*.csv", tree{"1.csv": "", "2.csv": ""}},
		"class": {"a/[13-9].csv", tree{"1.csv": ""}},
		"mark":  {"a/?.txt", tree{"3.txt": ""}},
		"deep":  {"a/**.csv", tree{"1.csv": "", "2.csv": "", "b/4.csv": "", "b/c/5.csv": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(tree{"a/1.csv": "", "a/2.csv": "", "a/3.txt": "", "a/b/4.csv": "", "a/b/c/5.csv": "", "a/10.txt": "", "z.csv": ""})
			o := b.fetch(b.url(c.pattern))
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, c.want, b.files())
		})
	}
}

func TestIncludeAndExclude(t *testing.T) {
	b := newBed(t)
	b.put(tree{"1.csv": "", "2.csv": "", "3.txt": "", "d/4.csv": ""})
	o := b.fetch(b.url(""), "--include", "*.csv", "--include", "d/*.csv", "--exclude", "2.*")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"1.csv": "", "d/4.csv": ""}, b.files())
}

func TestVersions(t *testing.T) {
	b := newBed(t)
	b.bucket += "-kept"
	require.NoError(t, server.MakeBucket(b.ctx, b.bucket, true))
	first, err := server.Put(b.ctx, b.bucket, "name", []byte("first"), true)
	require.NoError(t, err)
	_, err = server.Put(b.ctx, b.bucket, "name", []byte("second"), true)
	require.NoError(t, err)
	o := b.fetch(b.url("name"), "--version-id", first.Version)
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"name": "first"}, b.files())
	require.Equal(t, first.Version, b.manifest()[0].VersionID)
	o = b.fetch(b.url("name"))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"name": "second"}, b.files(), "another is asked for")
	o = b.fetch(b.url("name"), "--version-id", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	require.Equal(t, 1, o.code, o.stderr)
}

func TestFile(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(from, "d"), 0o755))
	want := tree{"d/a b": "one", "z": noise(3, 3<<20)}
	for name, content := range want {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(from, "link")))
	o := b.fetch("file://" + from + "/")
	require.Equal(t, 3, o.code, "links are not followed: %s", o.stderr)
	require.Equal(t, want, b.files())
	require.Contains(t, o.stderr+o.result.Message, "link")
}

func TestHostStyle(t *testing.T) {
	b := newBed(t)
	b.put(tree{"dir/name": "content"})
	// The host does not resolve; the proxy reaches it.
	b.env = append(b.env, "HTTP_PROXY="+b.proxy.Endpoint, "http_proxy="+b.proxy.Endpoint)
	o := b.launch("--endpoint", "http://"+domain, "--address-style", "virtual", b.url("dir/"), b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"name": "content"}, b.files())
	for _, r := range b.proxy.Requests() {
		require.NotContains(t, r.Path, b.bucket)
	}
}

func TestPut(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(from, "d"), 0o755))
	want := tree{"d/a b": "one", "big": noise(4, 40<<20)}
	for i := range 50 { // after each request the connection must be reusable
		want[fmt.Sprintf("empty%d", i)] = ""
	}
	for name, content := range want {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o600))
	}
	o := b.launch("put", "--endpoint", b.proxy.Endpoint, from, b.url("out/")).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, "complete", o.result.State)
	for name, content := range want {
		got, err := server.Get(b.ctx, b.bucket, "out/"+name)
		require.NoError(t, err)
		require.True(t, content == string(got), name)
	}
	require.Zero(t, b.fetch(b.url("out/")).code)
	require.Equal(t, want, b.files())
}

func TestPutIsVerified(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(from, "a"), []byte("content"), 0o600))
	b.proxy.Inject(s3.Fault{Method: "PUT", Path: "/a", Status: 400, Code: "BadDigest"})
	o := b.launch("put", "--endpoint", b.proxy.Endpoint, "--attempts", "2", from, b.url("out/")).wait()
	require.Equal(t, 1, o.code, o.stderr)
	require.Equal(t, "failed", o.result.State)
	require.Contains(t, o.result.Message, "a")
}

func TestPrepare(t *testing.T) {
	b := newBed(t)
	o := b.launch("prepare", b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, "complete", o.result.State)
	o = b.launch("prepare", filepath.Join(b.dest, "missing/dir")).wait()
	require.Zero(t, o.code, o.stderr)
	require.DirExists(t, filepath.Join(b.dest, "missing/dir"))
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "file"), nil, 0o600))
	o = b.launch("prepare", filepath.Join(b.dest, "file")).wait()
	require.Equal(t, 1, o.code, o.stderr)
}
