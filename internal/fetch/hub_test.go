package fetch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
	"github.com/flexlvm/flexlvm/test/hub"
)

// hubBed runs fetch from a Hub whose large files are on another host.
type hubBed struct {
	*webBed
	hub      *hub.Hub
	api, cdn *webtest.Server
}

func newHubBed(t *testing.T) *hubBed {
	t.Helper()
	t.Setenv("HF_TOKEN", "")
	b := &hubBed{webBed: newWebBed(t), api: webtest.New(t, false), cdn: webtest.New(t, false)}
	b.hub = &hub.Hub{CDN: b.cdn.URL, Page: 3, Serve: webtest.Serve}
	b.api.Handle("/", b.hub.ServeHTTP)
	b.cdn.Handle("/blobs/", b.hub.Blobs())
	b.access.Endpoint = b.api.URL
	return b
}

func modelFiles() map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{"a": 1}`), "model-00001.safetensors": storetest.RandomBytes(3, wholeLimit+1<<20), "model-00002.safetensors": storetest.RandomBytes(4, 2<<20),
		"tokenizer/a b%20é.txt": []byte("words"), "tokenizer/empty": {}, "README.md": []byte("# read"), "onnx/deep/er/model.onnx": storetest.RandomBytes(5, 100),
	}
}

func commitOf(files map[string][]byte) map[string]hub.File {
	out := map[string]hub.File{}
	for name, content := range files {
		ext := filepath.Ext(name)
		out[name] = hub.File{Content: content, LFS: ext == ".safetensors" || ext == ".onnx"}
	}
	return out
}

func TestHub(t *testing.T) {
	for source, repository := range map[string]string{
		"hf://org/name": "models/org/name", "hf://datasets/org/na.me@v1.0": "datasets/org/na.me", "hf://models/org/name@refs%2Fpr%2F1": "models/org/name",
	} {
		t.Run(source, func(t *testing.T) {
			b, files := newHubBed(t), modelFiles()
			for _, ref := range []string{"main", "v1.0", "refs/pr/1"} {
				b.hub.Commit(repository, ref, commitOf(files))
			}
			_, status, err := b.run(source)
			require.NoError(t, err)
			checks := map[string]string{}
			for path, e := range b.mustHave(files) {
				checks[path] = e.Check
			}
			require.Equal(t, "sha256", checks["model-00001.safetensors"])
			require.Equal(t, "git-sha1", checks["config.json"])
			require.Equal(t, "git-sha1: 4, sha256: 3", status.Checks)
			require.Regexp(t, "^[0-9a-f]{40}$", status.Revision)
			data, err := os.ReadFile(filepath.Join(b.dest, destination.CompleteFile))
			require.NoError(t, err)
			var c complete
			require.NoError(t, json.Unmarshal(data, &c))
			require.Equal(t, status.Revision, c.Revision)
		})
	}
}

// A path or patterns can select part of a repository.
func TestHubSelects(t *testing.T) {
	all := modelFiles()
	for source, c := range map[string]struct {
		include []string
		want    map[string]string // paths in the repository, by path in the destination
	}{
		"hf://org/name/tokenizer/":              {nil, map[string]string{"a b%20é.txt": "tokenizer/a b%20é.txt", "empty": "tokenizer/empty"}},
		"hf://org/name@main/onnx/deep/":         {nil, map[string]string{"er/model.onnx": "onnx/deep/er/model.onnx"}},
		"hf://org/name/config.json":             {nil, map[string]string{"config.json": "config.json"}},
		"hf://org/name/onnx/deep/er/model.onnx": {nil, map[string]string{"model.onnx": "onnx/deep/er/model.onnx"}},
		"hf://org/name/model-*2.safetensors":    {nil, map[string]string{"model-00002.safetensors": "model-00002.safetensors"}},
		"hf://org/name":                         {[]string{"*.json", "*.onnx"}, map[string]string{"config.json": "config.json", "onnx/deep/er/model.onnx": "onnx/deep/er/model.onnx"}},
	} {
		t.Run(source, func(t *testing.T) {
			b := newHubBed(t)
			b.hub.Commit("models/org/name", "main", commitOf(all))
			b.change = func(config *Config) { config.Include = c.include }
			_, _, err := b.run(source)
			require.NoError(t, err)
			want := map[string][]byte{}
			for here, there := range c.want {
				want[here] = all[there]
			}
			b.mustHave(want)
		})
	}
}

// If a revision moves while it is fetched, the run fetches the commit of its start. The next run fetches the changes.
func TestHubIsOneCommit(t *testing.T) {
	b, files := newHubBed(t), modelFiles()
	first := b.hub.Commit("models/org/name", "main", commitOf(files))
	later := modelFiles()
	later["config.json"] = []byte(`{"a": 2}`)
	delete(later, "README.md")
	moved := false
	b.api.Inject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !moved && r.URL.Path == "/org/name/resolve/"+first+"/README.md" {
			moved = true
			b.hub.Commit("models/org/name", "main", commitOf(later))
		}
		next.ServeHTTP(w, r)
	})
	b.change = func(c *Config) { c.Sync, c.Parallel = true, 1 }
	_, status, err := b.run("hf://org/name")
	require.NoError(t, err)
	require.True(t, moved)
	require.Equal(t, first, status.Revision)
	b.mustHave(files)

	before := b.cdn.Sent("")
	_, status, err = b.run("hf://org/name")
	require.NoError(t, err)
	require.NotEqual(t, first, status.Revision)
	b.mustHave(later)
	require.Equal(t, before, b.cdn.Sent(""), "what did not change is not fetched again")
}

// The token is sent to the Hub only, and appears in no log.
func TestHubToken(t *testing.T) {
	const token = "hf_aSecretToken"
	b, files := newHubBed(t), modelFiles()
	b.hub.Token = token
	b.hub.Commit("models/org/name", "main", commitOf(files))
	_, status, err := b.run("hf://org/name")
	require.ErrorContains(t, err, "Repository not found (check the name, the token")
	require.False(t, status.Retryable)

	for _, name := range []string{"token", "HF_TOKEN"} {
		b.dest = t.TempDir()
		b.credentials(map[string]string{name: token + "\n"})
		_, _, err = b.run("hf://org/name")
		require.NoError(t, err)
		b.mustHave(files)
	}
	b.dest, b.access.CredentialsDir = t.TempDir(), ""
	t.Setenv("HF_TOKEN", token)
	_, _, err = b.run("hf://org/name")
	require.NoError(t, err)
	b.access.Anonymous, b.dest = true, t.TempDir()
	_, _, err = b.run("hf://org/name")
	require.Error(t, err)

	require.NotEmpty(t, b.cdn.Requests(""))
	for _, r := range b.cdn.Requests("") {
		require.NotContains(t, fmt.Sprint(r.Header), token)
	}
	require.NotContains(t, b.logs.String(), token)

	// Errors do not contain the signature of a URL to which the Hub redirects.
	b.access.Anonymous, b.dest = false, t.TempDir()
	b.cdn.Close()
	b.change = func(c *Config) { c.Attempts = 1 }
	_, _, err = b.run("hf://org/name")
	require.Error(t, err)
	require.NotContains(t, b.logs.String()+err.Error(), "signed-for-a-test")
}

// A source that does not exist, or an invalid response, is an error and removes nothing.
func TestHubThatCannotBeRead(t *testing.T) {
	b := newHubBed(t)
	files := map[string][]byte{"a.txt": []byte("a")}
	b.hub.Commit("models/org/name", "main", commitOf(files))
	_, _, err := b.run("hf://org/name")
	require.NoError(t, err)
	b.change = func(c *Config) { c.Sync = true }
	for source, want := range map[string]string{
		"hf://org/name@other":   "Invalid rev id: other",
		"hf://org/none":         "Invalid rev id: main",
		"hf://org/name/b.txt":   "no files to fetch",
		"hf://org/name/folder/": "does not exist on",
	} {
		_, status, err := b.run(source)
		require.ErrorContains(t, err, want, source)
		require.False(t, status.Retryable, source)
		b.mustHave(files)
	}
	const revision, tree = "/api/models/org/name/revision/main", "/api/models/org/name/tree/"
	for name, tt := range map[string]struct {
		path    string
		answers http.HandlerFunc
		want    string
	}{
		"no commit":  {revision, words(`{"sha": 1}`), "the answer names no commit"},
		"no JSON":    {tree, words(`<html>`), "the response is not a list of entries"},
		"no hash":    {tree, words(`[{"type":"file","path":"a.txt","size":1,"oid":"x"}]`), `"a.txt" has no hash`},
		"no SHA-256": {tree, words(`[{"type":"file","path":"a.txt","size":1,"oid":"x","lfs":{"oid":"00","size":1}}]`), `"a.txt" has no SHA-256`},
		"page that repeats": {tree, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<https://h/x?recursive=true>; rel="next"`)
			words(`[]`)(w, nil)
		}, "the server returned the same page token twice"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHubBed(t)
			b.hub.Commit("models/org/name", "main", commitOf(files))
			b.api.Handle(tt.path, tt.answers)
			_, _, err := b.run("hf://org/name")
			require.ErrorContains(t, err, tt.want)
			b.mustHave(nil)
		})
	}
}

func words(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// Faults of the Hub or of its file host cost time, but never cause a wrong byte.
func TestHubFaults(t *testing.T) {
	large := modelFiles()["model-00001.safetensors"]
	blob := "/blobs/" + sha256Hex(large)
	for name, c := range map[string]struct {
		api, cdn webtest.Fault
		fails    string
	}{
		"broken in the middle": {cdn: webtest.Times(2, blob, webtest.After(blob, 3<<20, false))},
		"stalls in the middle": {cdn: webtest.Times(1, blob, webtest.After(blob, 3<<20, true))},
		"no ranges": {cdn: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		}},
		"signature is over": {cdn: webtest.Times(1, blob, webtest.Status(500))},
		"busy":              {api: webtest.Times(2, "/api/models/org/name/revision/main", webtest.Status(429))},
		"a wrong byte once": {cdn: webtest.Times(1, blob, wrong(large))},
		"a wrong byte":      {cdn: webtest.Times(1000, blob, wrong(large)), fails: `check "model-00001.safetensors": the source's checksum cannot be relied on: two downloads had the same content`},
	} {
		t.Run(name, func(t *testing.T) {
			b, files := newHubBed(t), modelFiles()
			if strings.HasPrefix(name, "stalls") {
				b.access.Stall, b.access.Attempts = briefly, 20
			}
			b.hub.Commit("models/org/name", "main", commitOf(files))
			b.api.Inject(c.api)
			b.cdn.Inject(c.cdn)
			_, _, err := b.run("hf://org/name")
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				delete(files, "model-00001.safetensors")
			} else {
				require.NoError(t, err)
			}
			b.mustHave(files)
		})
	}
}

// wrong serves content with one altered byte.
func wrong(content []byte) webtest.Fault {
	altered := append([]byte(nil), content...)
	altered[len(altered)/2] ^= 1
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) { webtest.Serve(w, r, altered) }
}
