//go:build s3

package suite

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

// The sources of VCK's published manifests, loaded as the controller does it.
func TestWordsOfVCK(t *testing.T) {
	const file, other = "cifar-100-python.tar.gz", "mnist.tar.gz"
	there := tree{file: "a", other: "b", "cifar/batch_1.bin": "c", "sets/x/cifar_2": "d", "bar/p0_1x": "e", "bar/q/1_1": "f", "bar/README": "g", "barn/0_1": "h"}
	for name, c := range map[string]struct {
		source string
		flags  []string
		want   tree
		note   string
	}{
		"one object":           {file, nil, tree{file: "a"}, ""},
		"all below a prefix":   {"bar/", nil, tree{"p0_1x": "e", "q/1_1": "f", "README": "g"}, ""},
		"*cifar* of a bucket":  {"", []string{"--path=*cifar*"}, tree{file: "a", "cifar/batch_1.bin": "c", "sets/x/cifar_2": "d"}, "5 of 8 objects"},
		"one of two patterns":  {"bar/", []string{"--path=*0_1*", "--elsewhere=*1_1*"}, tree{"p0_1x": "e"}, "1 of 3 objects"},
		"of one object":        {file + "/", []string{"--or-object", "--path=*cifar*"}, tree{file: "a"}, ""},
		"below, and no object": {"bar/", []string{"--or-object", "--path=*0_1*"}, tree{"p0_1x": "e"}, "2 of 3 objects"},
		"the other of the two": {"bar/", []string{"--path=*1_1*", "--elsewhere=*0_1*"}, tree{"q/1_1": "f"}, "1 of 3 objects"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(there)
			o := b.fetch(b.url(c.source), c.flags...)
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, c.want, b.files())
			require.Contains(t, strings.Join(o.result.Notes, "\n"), c.note)
			require.Equal(t, c.note == "", len(o.result.Notes) == 0, o.result.Notes)
		})
	}
}

// A source that is neither a prefix nor an object is reported, and so is a pattern that does not match
// the object.
func TestNeitherPrefixNorObject(t *testing.T) {
	b := newBed(t)
	b.put(tree{"a": "content"})
	for source, flag := range map[string]string{"none/": "--path=*", "a/": "--path=b*", "": "--path=b*"} {
		o := b.fetch(b.url(source), "--or-object", flag)
		require.Equal(t, 1, o.code, o.stderr)
		require.Contains(t, o.result.Message, "is selected by")
	}
}

// The published example for MinIO names its server without a scheme.
func TestEndpointWithoutScheme(t *testing.T) {
	b := newBed(t)
	b.put(tree{"a": "content"})
	host := strings.TrimPrefix(b.proxy.Endpoint, "http://")
	o := b.launch("--endpoint", host, b.url("a"), b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "content"}, b.files())
	require.Contains(t, strings.Join(o.result.Notes, "\n"), "assuming "+b.proxy.Endpoint)
	// A run after an edit that adds the scheme finds the same data.
	b.proxy.Forget()
	o = b.launch("--endpoint", b.proxy.Endpoint, "--sync", b.url("a"), b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	require.Zero(t, b.proxy.Sent("/a"))
}

// If the bucket is in another region than the one that requests are signed for, the region in the
// server's response is used.
func TestRegionThatIsNotNamed(t *testing.T) {
	b := newBed(t)
	b.put(tree{"p/a": "content"})
	const another = "eu-north-7"
	b.env = append(b.env, "AWS_REGION="+another)
	client, err := minio.New(strings.TrimPrefix(server.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(server.Access, server.Secret, ""), Region: another, BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
	})
	require.NoError(t, err)
	_, err = client.GetBucketVersioning(b.ctx, b.bucket)
	require.Equal(t, "AuthorizationHeaderMalformed", minio.ToErrorResponse(err).Code, "the server does mind: %v", err)
	for _, source := range []string{b.url("p/"), b.url("p/a")} {
		o := b.launch("--endpoint", server.Endpoint, source, b.dest).wait()
		require.Zero(t, o.code, o.stderr)
	}
	require.Equal(t, tree{"a": "content"}, b.files())
}

// A mirror uploads the changes that consumers make to a loaded directory. It leaves files alone that
// they did not change, even if these changed at the source.
func TestMirror(t *testing.T) {
	b := newBed(t)
	b.put(tree{"p/kept": "old", "p/changed": "old", "p/d/removed": "old"})
	source := b.url("p/")
	require.Zero(t, b.fetch(source).code)
	_, err := server.Put(b.ctx, b.bucket, "p/kept", []byte("changed by others"), true)
	require.NoError(t, err)
	mirror := func() (end func() int) {
		r := b.launch("mirror", "--endpoint", b.proxy.Endpoint, "--every", "50ms", "--back", b.dest, source)
		return func() int {
			require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
			return r.wait().code
		}
	}
	write := func(name, content string) {
		path := filepath.Join(b.dest, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	comes := func(key, content string) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, err := server.Get(b.ctx, b.bucket, key)
			return err == nil && string(got) == content
		}, longest, 50*time.Millisecond, "%s is not %q at the source", key, content)
	}
	end := mirror()
	write("changed", "new")
	write("results/1", "one")
	comes("p/changed", "new")
	comes("p/results/1", "one")
	require.NoError(t, os.Remove(filepath.Join(b.dest, "d/removed")))
	large := noise(7, 20<<20)
	write("results/large", large)
	comes("p/results/large", large)
	require.Equal(t, 75, end(), "it is ended from outside, and is to be started again")

	// Changes made while no mirror runs are uploaded by the next one, and nothing is uploaded twice.
	write("results/1", "two")
	time.Sleep(3 * time.Second) // files that changed just now are checked again in any case
	b.proxy.Forget()
	end = mirror()
	comes("p/results/1", "two")
	end()
	for _, r := range b.proxy.Requests() {
		require.False(t, r.Method == http.MethodPut && !strings.HasSuffix(r.Path, "results/1"), "%s %s", r.Method, r.Path)
	}
	// A last, verified upload precedes the directory's deletion.
	write("results/last", "three")
	o := b.launch("put", "--endpoint", b.proxy.Endpoint, "--back", b.dest, source).wait()
	require.Zero(t, o.code, o.stderr)
	comes("p/results/last", "three")
	comes("p/kept", "changed by others")
	comes("p/d/removed", "old")
}

// VCK's own test mirrored a directory that came from one object: the file is uploaded over the object,
// and new files beside it.
func TestMirrorOfOneObject(t *testing.T) {
	b := newBed(t)
	b.put(tree{"sets/cifar.tar.gz": "old", "sets/other": "old", "cifar.tar.gz": "another"})
	source := b.url("sets/cifar.tar.gz")
	require.Zero(t, b.fetch(source).code)
	require.Equal(t, tree{"cifar.tar.gz": "old"}, b.files())
	for name, content := range map[string]string{"cifar.tar.gz": "new", "results": "one"} {
		require.NoError(t, os.WriteFile(filepath.Join(b.dest, name), []byte(content), 0o644))
	}
	o := b.launch("put", "--endpoint", b.proxy.Endpoint, "--back", b.dest, source).wait()
	require.Zero(t, o.code, o.stderr)
	for key, want := range map[string]string{"sets/cifar.tar.gz": "new", "sets/results": "one", "sets/other": "old", "cifar.tar.gz": "another"} {
		got, err := server.Get(b.ctx, b.bucket, key)
		require.NoError(t, err, key)
		require.Equal(t, want, string(got), key)
	}
}

// A mirror whose server is down or refuses reports that and continues when it can.
func TestMirrorGoesOn(t *testing.T) {
	b := newBed(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.dest, "a"), []byte("content"), 0o644))
	b.proxy.Inject(s3.Fault{Method: "PUT", Path: "/a", Status: 403, Code: "AccessDenied"})
	address := ownAddress(t)
	r := b.launch("mirror", "--endpoint", b.proxy.Endpoint, "--attempts=1", "--every=50ms", "--id=claim", "--listen="+address, b.dest, b.url("p/"))
	state := func() (out struct {
		State, Message, ID    string
		FilesDone, FilesTotal int
	}) {
		answer, err := http.Get("http://" + address + "/progress")
		if err == nil {
			defer answer.Body.Close()
			_ = json.NewDecoder(answer.Body).Decode(&out) // the caller polls again
		}
		return out
	}
	require.Eventually(t, func() bool { return strings.Contains(state().Message, "1 of 1 changed files could not be uploaded") }, longest, 50*time.Millisecond, "%+v", state())
	require.Equal(t, "claim", state().ID)
	require.Zero(t, state().FilesDone)
	b.proxy.Inject()
	require.Eventually(t, func() bool { return state().FilesDone == 1 && state().Message == "" }, longest, 50*time.Millisecond, "%+v", state())
	got, err := server.Get(b.ctx, b.bucket, "p/a")
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
	require.NoError(t, r.cmd.Process.Kill())
	require.Equal(t, -1, r.wait().code)
}
