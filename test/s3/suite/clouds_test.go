//go:build s3

package suite

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
	"github.com/flexlvm/flexlvm/test/azure"
	"github.com/flexlvm/flexlvm/test/gcs"
	"github.com/flexlvm/flexlvm/test/served"
)

// gcsOfAll is started by the first test that needs it, and ends with the process.
var gcsOfAll = sync.OnceValues(func() (*gcs.Server, error) {
	return gcs.Start(context.Background(), served.Config{}, os.Stderr)
})

// A cloud is a bucket of another provider behind a server that can inject faults.
type cloud struct {
	*bed
	front *webtest.Server
	put   func(key, content string)
	url   string // of the bucket
	flags []string
	// object returns the path of a key's read request.
	object func(key string) string
	check  string // the checksum that large objects have
}

func newGCS(t *testing.T) *cloud {
	t.Helper()
	server, err := gcsOfAll()
	require.NoError(t, err)
	c := &cloud{bed: newBed(t), front: webtest.New(t, false), check: "crc32c"}
	require.NoError(t, server.MakeBucket(c.ctx, c.bucket))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Address})
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // the client closed the connection
	c.front.Handle("/", proxy.ServeHTTP)
	c.put = func(key, content string) { require.NoError(t, server.Put(c.ctx, c.bucket, key, content)) }
	c.url = "gs://" + c.bucket + "/"
	c.flags = []string{"--endpoint", c.front.URL, "--anonymous"}
	c.object = func(key string) string { return "/storage/v1/b/" + c.bucket + "/o/" + key }
	return c
}

// azureSecret is a base64-encoded key.
var azureSecret = base64.StdEncoding.EncodeToString([]byte("the-key-of-a-test-account-is-secret"))

func newAzure(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{bed: newBed(t), front: webtest.New(t, false), check: "md5"}
	account := &azure.Account{Name: "account", Key: azureSecret, SAS: "sv=2026&sig=a-secret%2Fsignature", Page: 2}
	c.front.Handle("/", account.ServeHTTP)
	c.put = func(key, content string) { account.Put("container", key, content, true) }
	c.url = "azblob://account/container/"
	c.flags = []string{"--endpoint", c.front.URL + "/account", "--credentials-dir", files(t, map[string]string{"accountKey": azureSecret})}
	c.object = func(key string) string { return "/account/container/" + key }
	return c
}

// files writes the files of a Secret to a directory and returns it.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func (c *cloud) get(path string, flags ...string) outcome {
	c.t.Helper()
	return c.launch(c.args(path, flags...)...).wait()
}

// args waits long for an answer: on a busy machine, a server without a fault may take seconds.
func (c *cloud) args(path string, flags ...string) []string {
	return append(append([]string{"--log-level", "trace", "--stall", "1m", "--attempts", "3"}, append(c.flags, flags...)...), c.url+path, c.dest)
}

var clouds = map[string]func(*testing.T) *cloud{"GCS": newGCS, "Azure": newAzure}

func cloudFiles() tree {
	return tree{"set/a": "one", "set/dir/b c%20é+&": "two", "set/large": noise(41, 40<<20), "set/empty": "", "settle": "not below"}
}

// Prefixes, patterns and single objects behave as with S3: changed objects are fetched again, deleted
// ones are removed, and a failing path removes nothing.
func TestClouds(t *testing.T) {
	for name, open := range clouds {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			for key, content := range cloudFiles() {
				c.put(key, content)
			}
			want := tree{"a": "one", "dir/b c%20é+&": "two", "large": cloudFiles()["set/large"], "empty": ""}
			o := c.get("set/")
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, want, c.files())
			for _, e := range c.manifest() {
				require.Equal(t, c.check, e.Check, e.Path)
			}
			before := c.front.Sent(c.object("set/large"))
			c.put("set/a", "1")
			want["a"] = "1"
			o = c.get("set/", "--sync")
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, want, c.files())
			require.Equal(t, before, c.front.Sent(c.object("set/large")))

			for _, one := range []struct {
				path string
				want tree
			}{
				{"set/a", tree{"a": "1"}},
				{"set/*", tree{"a": "1", "empty": "", "large": want["large"]}},
				{"", tree{"set/a": "1", "settle": "not below"}},
			} {
				c.dest = t.TempDir()
				o = c.get(one.path, "--exclude", "set/[del]**")
				require.Zero(t, o.code, o.stderr)
				require.True(t, maps.Equal(one.want, c.files()), one.path)
			}
			for _, path := range []string{"none", "none/", "*.csv"} {
				o = c.get(path, "--sync")
				require.Equal(t, 1, o.code, o.stderr)
				require.Equal(t, tree{"set/a": "1", "settle": "not below"}, c.files(), "nothing is removed")
			}
		})
	}
}

func TestCloudFaults(t *testing.T) {
	large := cloudFiles()["set/large"]
	altered := []byte(large)
	altered[20<<20] ^= 1
	serve := func(content []byte) webtest.Fault {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&other{ResponseWriter: w, request: r, content: content}, r)
		}
	}
	for cloudName, open := range clouds {
		for name, f := range map[string]struct {
			fault func(c *cloud, path string) webtest.Fault
			fails string
			flags []string
		}{
			"broken in the middle": {func(_ *cloud, p string) webtest.Fault { return webtest.Times(2, p, webtest.After(p, 3<<20, false)) }, "", nil},
			"stalls":               {func(_ *cloud, p string) webtest.Fault { return webtest.Times(1, p, webtest.After(p, 3<<20, true)) }, "", []string{"--stall", "2s", "--attempts", "20"}},
			"busy":                 {func(_ *cloud, p string) webtest.Fault { return webtest.Times(2, p, webtest.Status(503)) }, "", nil},
			"changes": {func(c *cloud, p string) webtest.Fault {
				changed := false
				var mu sync.Mutex
				return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					mu.Lock()
					if r.URL.Path == p && strings.HasPrefix(r.Header.Get("Range"), "bytes=16777216-") && !changed {
						changed = true
						c.put("set/large", "it is small now")
					}
					mu.Unlock()
					next.ServeHTTP(w, r)
				}
			}, "", nil},
			"lies once": {func(_ *cloud, p string) webtest.Fault {
				return onRange(p, "bytes=16777216-", 1, serve(altered))
			}, "", nil},
			"lies": {func(_ *cloud, p string) webtest.Fault {
				return onRange(p, "bytes=16777216-", 1000, serve(altered))
			}, "two downloads had the same content", nil},
		} {
			t.Run(cloudName+", "+name, func(t *testing.T) {
				c := open(t)
				c.put("set/large", large)
				c.front.Inject(f.fault(c, c.object("set/large")))
				o := c.get("set/", f.flags...)
				switch {
				case f.fails != "":
					require.Equal(t, 1, o.code, o.stderr)
					require.Contains(t, o.result.Message, f.fails)
					require.Empty(t, c.files())
				case name == "changes":
					require.Zero(t, o.code, o.stderr)
					require.Equal(t, tree{"large": "it is small now"}, c.files())
				default:
					require.Zero(t, o.code, o.stderr)
					require.True(t, c.files()["large"] == large)
				}
			})
		}
	}
}

// onRange applies a fault to that many requests of a range.
func onRange(path, begin string, times int, f webtest.Fault) webtest.Fault {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		hit := r.URL.Path == path && strings.HasPrefix(r.Header.Get("Range"), begin) && times > 0
		if hit {
			times--
		}
		mu.Unlock()
		if hit {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// other replaces the written range with other content.
type other struct {
	http.ResponseWriter
	request *http.Request
	content []byte
	at      int
}

func (o *other) Write(b []byte) (int, error) {
	var from, to int
	if _, err := fmt.Sscanf(o.request.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		return 0, err
	}
	n, err := o.ResponseWriter.Write(o.content[from+o.at : from+o.at+len(b)])
	o.at += n
	return n, err
}

func TestCloudsAreKilled(t *testing.T) {
	for name, open := range clouds {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			want := noise(42, 60<<20)
			c.put("set/large", want)
			c.killed(c.front, c.object("set/large"), 44<<20, c.args("set/", fewer...)...)
			before := c.front.Sent(c.object("set/large"))
			o := c.get("set/")
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, tree{"large": want}, c.files())
			require.Less(t, c.front.Sent(c.object("set/large"))-before, int64(42<<20), "what had come is not fetched again")
		})
	}
}

func TestAzureCredentials(t *testing.T) {
	c := newAzure(t)
	c.put("a", "one")
	endpoint := []string{"--endpoint", c.front.URL + "/account"}
	for name, k := range map[string]struct {
		files map[string]string
		env   []string
		fails string
	}{
		"token":              {map[string]string{"sasToken": "?sv=2026&sig=a-secret%2Fsignature\n"}, nil, ""},
		"token of the shell": {nil, []string{"AZURE_STORAGE_SAS_TOKEN=sv=2026&sig=a-secret%2Fsignature"}, ""},
		"key of the shell":   {nil, []string{"AZURE_STORAGE_KEY=" + azureSecret}, ""},
		"wrong key":          {map[string]string{"accountKey": "d3JvbmcgYS1zZWNyZXQ="}, nil, "check the credentials"},
		"no key":             {map[string]string{"accountKey": "a-secret that is no base64"}, nil, "accountKey is not in base64"},
		"neither":            {map[string]string{"x": "y"}, nil, "lacks accountKey or sasToken"},
		"nothing":            {nil, nil, "give --credentials-dir or --anonymous"},
	} {
		c.dest, c.env, c.flags = t.TempDir(), k.env, endpoint
		if k.files != nil {
			c.flags = slices.Concat(endpoint, []string{"--credentials-dir", files(t, k.files)})
		}
		o := c.get("")
		text := o.stdout + o.stderr + o.result.Message
		require.NotContains(t, text, "a-secret", name)
		require.NotContains(t, text, azureSecret, name)
		if k.fails != "" {
			require.Equal(t, 1, o.code, o.stderr)
			require.Contains(t, o.result.Message, k.fails, name)
			continue
		}
		require.Zero(t, o.code, o.stderr)
		require.Equal(t, tree{"a": "one"}, c.files(), name)
	}
}

// A workload identity exchanges the token in kubelet's file for an access token.
func TestAzureIdentity(t *testing.T) {
	c := newAzure(t)
	open := &azure.Account{Name: "account"}
	open.Put("container", "a", "one", false)
	c.front.Handle("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer short-lived" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		open.ServeHTTP(w, r)
	})
	c.front.Handle("/tenant/oauth2/v2.0/token", func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("client_assertion") != "a-secret-assertion" || r.PostFormValue("client_id") != "client" || r.PostFormValue("scope") != "https://storage.azure.com/.default" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"short-lived","token_type":"Bearer","expires_in":3600}`)
	})
	dir := files(t, map[string]string{"token": "a-secret-assertion"})
	c.env = []string{"AZURE_CLIENT_ID=client", "AZURE_TENANT_ID=tenant", "AZURE_FEDERATED_TOKEN_FILE=" + dir + "/token", "AZURE_AUTHORITY_HOST=" + c.front.URL}
	c.flags = []string{"--endpoint", c.front.URL + "/account"}
	o := c.get("")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "one"}, c.files())
	require.Equal(t, "size", c.manifest()[0].Check, "a blob without an MD5 has nothing else")
	require.Len(t, c.front.Requests("/tenant/oauth2/v2.0/token"), 1, "a token is used again")

	require.NoError(t, os.WriteFile(dir+"/token", []byte("a-secret that is over"), 0o600))
	c.dest = t.TempDir()
	o = c.get("")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "401 invalid_client")
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, "a-secret")
}

// A service account's key is exchanged for a token, which the bucket's server receives.
func TestGCSCredentials(t *testing.T) {
	c := newGCS(t)
	c.put("a", "one")
	key, err := gcs.Key(c.front.URL)
	require.NoError(t, err)
	c.front.Inject(gcs.Guard)
	o := c.get("")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "check the credentials")
	c.flags = []string{"--endpoint", c.front.URL, "--credentials-dir", files(t, map[string]string{"key.json": string(key)})}
	o = c.get("")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "one"}, c.files())
	for _, secret := range []string{gcs.Token, "PRIVATE KEY"} {
		require.NotContains(t, o.stdout+o.stderr+o.result.Message, secret)
	}
	c.flags[3] = files(t, map[string]string{"key.json": "{a-secret}"})
	o = c.get("", "--sync")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "key.json is not the JSON key of a service account")
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, "a-secret")
}
