//go:build s3

package suite

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
	"github.com/flexlvm/flexlvm/test/oci"
	"github.com/flexlvm/flexlvm/test/served"
)

// registryOfAll is started by the first test that needs it, and stopped after all tests.
var (
	registryOfAll = sync.OnceValues(func() (r *oci.Registry, err error) {
		r, err = oci.Start(context.Background(), served.Config{}, os.Stderr)
		registryStarted = r
		return r, err
	})
	registryStarted *oci.Registry // or nil
)

// ociBed is a bed with a real registry behind a server that can inject faults.
type ociBed struct {
	*bed
	registry *oci.Registry
	front    *webtest.Server
	name     string
}

func newOCIBed(t *testing.T) *ociBed {
	t.Helper()
	registry, err := registryOfAll() // before the test's deadline begins, because it may have to be built
	require.NoError(t, err)
	b := &ociBed{bed: newBed(t), registry: registry, front: webtest.New(t, false)}
	b.name = b.bucket
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: b.registry.Host})
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // the client closed the connection
	b.front.Handle("/", proxy.ServeHTTP)
	return b
}

func (b *ociBed) push(tag string, layers ...oci.Layer) string {
	b.t.Helper()
	d, err := b.registry.Push(b.ctx, nil, b.name, tag, layers...)
	require.NoError(b.t, err)
	return d
}

// pull fetches the repository's tag or digest, such as :latest, with flags.
func (b *ociBed) pull(reference string, flags ...string) outcome {
	b.t.Helper()
	return b.launch(b.args(reference, flags...)...).wait()
}

func (b *ociBed) args(reference string, flags ...string) []string {
	return append(append([]string{"--endpoint", b.front.URL, "--log-level", "trace"}, flags...), "oci://registry.example/"+b.name+reference, b.dest)
}

const (
	imageTar  = "application/vnd.oci.image.layer.v1.tar"
	modelTar  = "application/vnd.cncf.model.weight.v1.tar"
	modelRaw  = "application/vnd.cncf.model.weight.config.v1.raw"
	titled    = "org.opencontainers.image.title"
	unpackDir = "io.deis.oras.content.unpack"
)

// Artifacts as tools push them: files with titles, packed directories, models, images.
func TestArtifact(t *testing.T) {
	big := noise(31, 40<<20)
	for name, c := range map[string]struct {
		layers []oci.Layer
		want   tree
		checks string
	}{
		"files with titles": {[]oci.Layer{
			{MediaType: "application/octet-stream", Annotations: map[string]string{titled: "weights/model.bin"}, Content: []byte(big)},
			{MediaType: imageTar, Annotations: map[string]string{titled: "a.txt"}, Content: []byte("a")},
		}, tree{"weights/model.bin": big, "a.txt": "a"}, "sha256: 2"},
		"packed directory": {[]oci.Layer{
			{MediaType: imageTar + "+gzip", Annotations: map[string]string{titled: "dir", unpackDir: "true"}, Content: oci.Gzip(oci.Tar(map[string]string{"dir/a": "1", "dir/b/c": "2"}))},
		}, tree{"dir/a": "1", "dir/b/c": "2"}, "crc64nvme: 2"},
		"ModelPack": {[]oci.Layer{
			{MediaType: modelTar, Annotations: map[string]string{"org.cncf.model.filepath": "model.safetensors"}, Content: oci.Tar(map[string]string{"./model.safetensors": big})},
			{MediaType: modelRaw, Annotations: map[string]string{"org.cncf.model.filepath": "config.json"}, Content: []byte("{}")},
			{MediaType: modelTar + "+zstd", Content: oci.Zstd(oci.Tar(map[string]string{"tokenizer/vocab": "words"}))},
		}, tree{"model.safetensors": big, "config.json": "{}", "tokenizer/vocab": "words"}, "crc64nvme: 2, sha256: 1"},
		"modelcar": {[]oci.Layer{
			{MediaType: imageTar + "+gzip", Content: oci.Gzip(oci.Tar(map[string]string{"models/a": "old", "models/b": "b"}))},
			{MediaType: "application/vnd.docker.image.rootfs.diff.tar.gzip", Content: oci.Gzip(oci.Tar(map[string]string{"models/a": "new", "models/empty": ""}))},
		}, tree{"models/a": "new", "models/b": "b", "models/empty": ""}, "crc64nvme: 3"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOCIBed(t)
			digest := b.push("v1", c.layers...)
			o := b.pull(":v1")
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, c.want, b.files())
			require.True(t, b.complete())
			require.NoDirExists(t, filepath.Join(b.dest, ".flexlvm/layers"))
			text, err := os.ReadFile(filepath.Join(b.dest, ".flexlvm/complete"))
			require.NoError(t, err)
			require.Contains(t, string(text), `"revision":"`+digest+`"`)

			// A repeated pull, by tag or digest, requests no layer.
			before := len(b.front.Requests(""))
			o = b.pull(":v1", "--sync")
			require.Zero(t, o.code, o.stderr)
			for _, r := range b.front.Requests("")[before:] {
				if strings.Contains(c.checks, "crc64") { // packed; in the other cases listing ranges is cheap
					require.NotContains(t, r.Path, "/blobs/")
				}
			}
			o = b.pull("@" + digest)
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, c.want, b.files())
		})
	}
}

// When a tag moves, new files are fetched, deleted ones are removed, and the rest stays.
func TestArtifactMoves(t *testing.T) {
	b := newOCIBed(t)
	b.push("latest", oci.Layer{MediaType: imageTar, Content: oci.Tar(map[string]string{"models/a": "1", "models/b": "2", "models/c": "3"})})
	require.Zero(t, b.pull("").code)
	before, err := os.Stat(filepath.Join(b.dest, "models/a"))
	require.NoError(t, err)
	b.push("latest", oci.Layer{MediaType: imageTar, Content: oci.Tar(map[string]string{"models/a": "1", "models/b": "two", "models/d": "4"})})
	o := b.pull("", "--sync")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"models/a": "1", "models/b": "two", "models/d": "4"}, b.files())
	after, err := os.Stat(filepath.Join(b.dest, "models/a"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "what did not change stays")
}

// No path of a layer leads outside of the directory, and no link is created.
func TestArtifactThatEscapes(t *testing.T) {
	b := newOCIBed(t)
	outside := filepath.Join(filepath.Dir(b.dest), "escaped")
	b.push("v1",
		oci.Layer{MediaType: imageTar + "+gzip", Content: oci.Gzip(oci.Tar(map[string]string{"models/good": "good"},
			tar.Header{Typeflag: tar.TypeReg, Name: "../escaped"},
			tar.Header{Typeflag: tar.TypeReg, Name: outside},
			tar.Header{Typeflag: tar.TypeReg, Name: "models/../../escaped"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc"},
			tar.Header{Typeflag: tar.TypeReg, Name: "link/passwd"},
			tar.Header{Typeflag: tar.TypeLink, Name: "models/hard", Linkname: "/etc/passwd"},
			tar.Header{Typeflag: tar.TypeFifo, Name: "models/fifo"},
			tar.Header{Typeflag: tar.TypeReg, Name: "models/.wh.good"}, // a whiteout does not affect its own layer
			tar.Header{Typeflag: tar.TypeReg, Name: "models/.wh..wh.plnk"},
			tar.Header{Typeflag: tar.TypeReg, Name: ".flexlvm/complete"},
		))},
		oci.Layer{MediaType: "application/octet-stream", Annotations: map[string]string{titled: "../escaped-too"}, Content: []byte("x")},
		oci.Layer{MediaType: "application/x-license", Content: []byte("license")},
	)
	o := b.pull(":v1")
	require.Equal(t, 3, o.code, o.stderr)
	require.Equal(t, tree{"models/good": "good", "link/passwd": ""}, b.files())
	require.NoFileExists(t, outside)
	require.Equal(t, 10, o.result.Refused, o.stderr)
	for _, why := range []string{"a symbolic link", "a hard link", "not a regular file", "a whiteout", "no title"} {
		require.Contains(t, o.stderr, why)
	}
	// Files that a pattern excludes are not refused.
	b.dest = t.TempDir()
	o = b.pull(":v1", "--include", "models/g*")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"good": "good"}, tree{"good": b.files()["models/good"]})
}

// A layer that is not a valid tar or not validly compressed is reported, and changes nothing.
func TestArtifactThatIsBroken(t *testing.T) {
	whole := oci.Tar(map[string]string{"models/a": noise(32, 100<<10)})
	for name, layer := range map[string]oci.Layer{
		"tar":      {MediaType: imageTar, Content: []byte(noise(33, 4<<10))},
		"cut tar":  {MediaType: imageTar, Content: whole[:50<<10]},
		"gzip":     {MediaType: imageTar + "+gzip", Content: whole},
		"cut gzip": {MediaType: imageTar + "+gzip", Content: oci.Gzip(whole)[:50<<10]},
		"zstd":     {MediaType: imageTar + "+zstd", Content: whole},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOCIBed(t)
			b.push("good", oci.Layer{MediaType: imageTar, Content: whole})
			require.Zero(t, b.pull(":good").code)
			b.push("bad", layer)
			o := b.pull(":bad", "--sync")
			require.Equal(t, 1, o.code, o.stderr)
			require.Contains(t, o.result.Message, "layer sha256:")
			require.Equal(t, tree{"models/a": noise(32, 100<<10)}, b.files())
		})
	}
}

// Of an index, the manifest for this machine is pulled.
func TestArtifactOfPlatforms(t *testing.T) {
	b := newOCIBed(t)
	var all []ocispec.Descriptor
	for _, arch := range []string{"other", runtime.GOARCH} {
		d := b.push(arch, oci.Layer{MediaType: imageTar, Content: oci.Tar(map[string]string{"arch": arch})})
		all = append(all, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(d), Size: sizeOf(t, b, d), Platform: &ocispec.Platform{OS: "linux", Architecture: arch}})
	}
	_, err := b.registry.PushIndex(b.ctx, b.name, "index", all...)
	require.NoError(t, err)
	o := b.pull(":index")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"arch": runtime.GOARCH}, b.files())
	all[1].Platform.Architecture = "third"
	_, err = b.registry.PushIndex(b.ctx, b.name, "index", all...)
	require.NoError(t, err)
	o = b.pull(":index", "--sync")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "linux/other, linux/third")
}

func sizeOf(t *testing.T, b *ociBed, digest string) int64 {
	t.Helper()
	response, err := http.Get("http://" + b.registry.Host + "/v2/" + b.name + "/manifests/" + digest)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.ContentLength
}

// A registry that requires authentication gets the credentials of a docker Secret, and no other host
// does.
func TestArtifactCredentials(t *testing.T) {
	const secret = "the-registry's-password"
	b := newOCIBed(t)
	other := webtest.New(t, false)
	b.push("v1", oci.Layer{MediaType: imageTar, Content: oci.Tar(map[string]string{"a": "1"})}, oci.Layer{MediaType: "x/y", Annotations: map[string]string{titled: "far"}, Content: []byte("far")})
	far := "/v2/" + b.name + "/blobs/" + digest.FromString("far").String()
	other.Put("/far", []byte("far"))
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+secret))
	b.front.Inject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.URL.Path == "/token":
			if r.Header.Get("Authorization") != basic {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			require.Equal(t, "repository:"+b.name+":pull", r.URL.Query().Get("scope"))
			fmt.Fprint(w, `{"token": "short-lived"}`)
		case r.Header.Get("Authorization") != "Bearer short-lived":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+b.front.URL+`/token",service="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == far:
			http.Redirect(w, r, other.URL+"/far?sig="+secret, http.StatusTemporaryRedirect)
		default:
			next.ServeHTTP(w, r)
		}
	})
	o := b.pull(":v1")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "check the name and the credentials")

	dir := t.TempDir()
	config := func(password string) {
		text := fmt.Sprintf(`{"auths":{"http://%s":{"auth":%q}}}`, strings.TrimPrefix(b.front.URL, "http://"), base64.StdEncoding.EncodeToString([]byte("me:"+password)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".dockerconfigjson"), []byte(text), 0o600))
	}
	config("wrong-" + secret)
	o = b.pull(":v1", "--credentials-dir", dir)
	require.Equal(t, 1, o.code, o.stderr)
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, secret)
	config(secret)
	o = b.pull(":v1", "--credentials-dir", dir)
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "1", "far": "far"}, b.files())
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, secret)
	require.NotEmpty(t, other.Requests(""))
	for _, r := range other.Requests("") {
		require.Empty(t, r.Authorization)
	}
}

// A registry's faults cost time, and never cause a wrong byte.
func TestArtifactFaults(t *testing.T) {
	model := noise(34, 40<<20)
	packed := oci.Tar(map[string]string{"models/m": model})
	flipped := []byte(string(packed))
	flipped[20<<20] ^= 1
	blob := func(b *ociBed) string { return "/v2/" + b.name + "/blobs/" + digest.FromBytes(packed).String() }
	for name, c := range map[string]struct {
		fault func(path string) webtest.Fault
		fails string
	}{
		"broken in the middle": {fault: func(p string) webtest.Fault { return webtest.Times(2, p, webtest.After(p, 3<<20, false)) }},
		"stalls":               {fault: func(p string) webtest.Fault { return webtest.Times(1, p, webtest.After(p, 3<<20, true)) }},
		"busy":                 {fault: func(p string) webtest.Fault { return webtest.Times(2, p, webtest.Status(503)) }},
		"no ranges": {fault: func(string) webtest.Fault {
			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				r.Header.Del("Range")
				next.ServeHTTP(w, r)
			}
		}},
		"lies": {fault: func(p string) webtest.Fault {
			return webtest.Times(1000, p, func(w http.ResponseWriter, r *http.Request, _ http.Handler) { webtest.Serve(w, r, flipped) })
		}, fails: "two downloads had the same content"},
		"gone": {fault: func(p string) webtest.Fault { return webtest.Times(1000, p, webtest.Status(404)) }, fails: "could not be fetched"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOCIBed(t)
			b.push("v1", oci.Layer{MediaType: imageTar, Content: packed})
			b.front.Inject(c.fault(blob(b)))
			stall, attempts := "1m", "3" // on a busy machine, a server without a fault may take seconds
			if name == "stalls" {
				stall, attempts = "2s", "20"
			}
			o := b.pull(":v1", "--stall", stall, "--attempts", attempts)
			if c.fails != "" {
				require.Equal(t, 1, o.code, o.stderr)
				require.Contains(t, o.result.Message, c.fails)
				require.Empty(t, b.files())
				return
			}
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, tree{"models/m": model}, b.files())
		})
	}
}

// A load of a packed layer that is killed resumes where it was.
func TestArtifactIsKilled(t *testing.T) {
	b := newOCIBed(t)
	model := noise(35, 60<<20)
	packed := oci.Gzip(oci.Tar(map[string]string{"models/m": model}))
	b.push("v1", oci.Layer{MediaType: imageTar + "+gzip", Content: packed})
	blob := "/v2/" + b.name + "/blobs/" + digest.FromBytes(packed).String()
	b.killed(b.front, blob, 44<<20, b.args(":v1", fewer...)...)
	before := b.front.Sent(blob)
	o := b.pull(":v1")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"models/m": model}, b.files())
	require.Less(t, b.front.Sent(blob)-before, int64(42<<20), "what had come is not fetched again")
}
