package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
)

// briefly is the stall timeout of tests in which a server stalls.
const briefly = 2 * time.Second

// webBed runs fetch from an HTTP source.
type webBed struct {
	*bed
	access s3store.Config
	logs   strings.Builder
}

func newWebBed(t *testing.T) *webBed {
	t.Helper()
	return &webBed{
		bed:    &bed{t: t, dest: filepath.Join(t.TempDir(), "dest"), change: func(*Config) {}},
		access: s3store.Config{Attempts: 3, Stall: patient},
	}
}

// run fetches a source, and keeps all log lines and messages, in which tests look for leaked secrets.
func (b *webBed) run(source string) ([]Refusal, protocol.Status, error) {
	b.t.Helper()
	s, err := ParseSource(source)
	require.NoError(b.t, err)
	from, err := OpenSource(b.t.Context(), s, b.access)
	require.NoError(b.t, err)
	log := logrus.New()
	log.SetOutput(io.Writer(&b.logs))
	log.SetLevel(logrus.TraceLevel)
	config := Config{Source: s, Dest: b.dest, Store: from, Attempts: b.access.Attempts, Stall: b.access.Stall, Parallel: 4, Log: log}
	b.change(&config)
	progress := NewProgress(ReadyAfter{})
	refused, err := Run(b.t.Context(), config, progress)
	status := progress.Status(time.Now())
	b.logs.WriteString(status.Message + strings.Join(status.Notes, " "))
	return refused, status, err
}

// credentials creates the files of a Secret.
func (b *webBed) credentials(files map[string]string) {
	b.t.Helper()
	b.access.CredentialsDir = b.t.TempDir()
	for name, content := range files {
		require.NoError(b.t, os.WriteFile(filepath.Join(b.access.CredentialsDir, name), []byte(content), 0o600))
	}
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// listOf returns one line of a list; more is appended to its JSON.
func listOf(url string, content []byte, more string) string {
	return fmt.Sprintf(`{"url":%q,"sha256":%q,"size":%d%s}`+"\n", url, sha256Hex(content), len(content), more)
}

// listed puts files and their list on a server.
func listed(s *webtest.Server, files map[string][]byte) {
	var list strings.Builder
	for path, content := range files {
		s.Put("/set/"+path, content)
		list.WriteString(listOf(path, content, ""))
	}
	s.Put("/set/list", []byte(list.String()))
}

func someFiles() map[string][]byte {
	return map[string][]byte{"a": []byte("one"), "dir/b": storetest.RandomBytes(1, 3<<20), "empty": {}, "large": storetest.RandomBytes(2, wholeLimit+store.MiB)}
}

func TestList(t *testing.T) {
	b, s, files := newWebBed(t), webtest.New(t, false), someFiles()
	listed(s, files)
	_, status, err := b.run(s.URL + "/set/list")
	require.NoError(t, err)
	for _, e := range b.mustHave(files) {
		require.Equal(t, "sha256", e.Check)
	}
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", status.Revision)
	require.Greater(t, len(s.Requests("/set/large")), 2, "it comes in ranges")

	// Unchanged files are not fetched again, and files that are no longer listed are removed.
	before := s.Sent("")
	delete(files, "a")
	files["new"] = []byte("new")
	listed(s, files)
	b.change = func(c *Config) { c.Sync = true }
	_, _, err = b.run(s.URL + "/set/list")
	require.NoError(t, err)
	b.mustHave(files)
	require.Less(t, s.Sent("")-before, int64(10<<10))
}

func TestListNamesPaths(t *testing.T) {
	b, s, other := newWebBed(t), webtest.New(t, false), webtest.New(t, false)
	other.Put("/x/y/far", []byte("far"))
	s.Put("/near", []byte("near"))
	s.Put("/l", []byte(listOf(other.URL+"/x/y/far", []byte("far"), "")+listOf("near", []byte("near"), `,"path":"d/e/f"`)+listOf("near", []byte("near"), `,"path":"../out"`)))
	refused, _, err := b.run(s.URL + "/l#sha256=" + sha256Hex([]byte(listOf(other.URL+"/x/y/far", []byte("far"), "")+listOf("near", []byte("near"), `,"path":"d/e/f"`)+listOf("near", []byte("near"), `,"path":"../out"`))))
	require.NoError(t, err)
	require.Len(t, refused, 1)
	require.Equal(t, "../out", refused[0].Key)
	b.mustHave(map[string][]byte{"far": []byte("far"), "d/e/f": []byte("near")})

	_, _, err = newWebBed(t).run(s.URL + "/l#sha256=" + strings.Repeat("0", 64))
	require.ErrorContains(t, err, "the list's SHA-256 is")
}

// A list that cannot be read completely is an error, and removes nothing.
func TestListThatCannotBeRead(t *testing.T) {
	b, s := newWebBed(t), webtest.New(t, false)
	listed(s, map[string][]byte{"a": []byte("one")})
	_, _, err := b.run(s.URL + "/set/list")
	require.NoError(t, err)
	b.change = func(c *Config) { c.Sync = true }
	good := listOf("a", []byte("one"), "")
	for text, want := range map[string]string{
		"":       "no files to fetch",
		"<html>": "entry 1 is not a JSON object",
		good + `{"url":"b","sha256":"00","size":1}`:         `entry 2: sha256 "00" is not a SHA-256 in hex`,
		strings.Replace(good, `"size":3`, `"size":-3`, 1):   "entry 1: size has to be",
		strings.Replace(good, `,"size":3`, ``, 1):           "entry 1: size has to be",
		strings.Replace(good, `"a"`, `"ftp://h/a"`, 1):      "has to be http[s]://host/path",
		strings.Replace(good, `"a"`, `"http://u:p@h/a"`, 1): "without a user",
		strings.Replace(good, `"size"`, `"bytes"`, 1):       "entry 1 is not a JSON object",
	} {
		s.Put("/set/list", []byte(text))
		_, status, err := b.run(s.URL + "/set/list")
		require.ErrorContains(t, err, want, text)
		require.False(t, status.Retryable, text)
		b.mustHave(map[string][]byte{"a": []byte("one")})
	}
}

// Transient faults of the server cost time, but never cause a wrong byte.
func TestListFaultsThatPass(t *testing.T) {
	const large = "/set/large"
	for name, fault := range map[string]webtest.Fault{
		"broken in the middle": webtest.Times(2, large, webtest.After(large, 3<<20, false)),
		"stalls in the middle": webtest.Times(1, large, webtest.After(large, 3<<20, true)),
		"small one is broken":  webtest.Times(1, "/set/dir/b", webtest.After("/set/dir/b", 2<<20, false)),
		"503":                  webtest.Times(2, "/set/a", webtest.Status(503)),
		"429 of the list":      webtest.Times(2, "/set/list", webtest.Status(429)),
		"broken list":          webtest.Times(1, "/set/list", webtest.After("/set/list", 100, false)),
		"another range": webtest.Times(1, large, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Set("Range", "bytes=1-2")
			next.ServeHTTP(w, r)
		}),
		"no ranges": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		},
		"no If-Range, no ETags": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("If-Range")
			next.ServeHTTP(noETag{w}, r)
		},
		"a wrong byte, once": webtest.Times(1, "/set/a", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			webtest.Serve(w, r, []byte("onE"))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, s, files := newWebBed(t), webtest.New(t, false), someFiles()
			if strings.HasPrefix(name, "stalls") {
				b.access.Stall, b.access.Attempts = briefly, 20
			}
			listed(s, files)
			s.Inject(fault)
			_, _, err := b.run(s.URL + "/set/list")
			require.NoError(t, err)
			b.mustHave(files)
			require.Less(t, s.Sent(""), 2*wholeLimit+16*store.MiB)
		})
	}
}

type noETag struct{ http.ResponseWriter }

func (n noETag) WriteHeader(status int) {
	n.Header().Del("ETag")
	n.ResponseWriter.WriteHeader(status)
}

// A file whose content is wrong or has changed is reported, and does not appear.
func TestListFaultsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		content   []byte
		message   string
		retryable bool
	}{
		"another byte":   {[]byte("onE"), "two downloads had the same content", false},
		"another length": {[]byte("longer"), "it has 6 bytes, and the list says 3", true},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := newWebBed(t), webtest.New(t, false)
			files := map[string][]byte{"a": []byte("one"), "b": []byte("two")}
			listed(s, files)
			s.Put("/set/a", c.content)
			_, status, err := b.run(s.URL + "/set/list")
			require.ErrorContains(t, err, c.message)
			require.Equal(t, c.retryable, status.Retryable)
			b.mustHave(map[string][]byte{"b": []byte("two")})
		})
	}
	// A file that changes while its ranges arrive is fetched from scratch, and fails the list's checksum.
	b, s, files := newWebBed(t), webtest.New(t, false), someFiles()
	listed(s, files)
	changed := storetest.RandomBytes(9, wholeLimit+store.MiB)
	n := 0
	s.Inject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == "/set/large" {
			if n++; n == 3 {
				s.Put("/set/large", changed)
			}
		}
		next.ServeHTTP(w, r)
	})
	b.change = func(c *Config) { c.Parallel = 1 }
	_, _, err := b.run(s.URL + "/set/list")
	require.Error(t, err)
	delete(files, "large")
	b.mustHave(files)
	// When the original content is back, ranges of the other content are not used for it.
	s.Inject(nil)
	files["large"] = someFiles()["large"]
	listed(s, files)
	_, _, err = b.run(s.URL + "/set/list")
	require.NoError(t, err)
	b.mustHave(files)
}

// A listed file that does not exist is refused, and the others arrive.
func TestListedAndMissing(t *testing.T) {
	b, s := newWebBed(t), webtest.New(t, false)
	listed(s, map[string][]byte{"b": []byte("two")})
	s.Put("/set/list", []byte(listOf("b", []byte("two"), "")+listOf("gone", []byte("x"), "")))
	refused, _, err := b.run(s.URL + "/set/list")
	require.NoError(t, err)
	require.Len(t, refused, 1)
	require.Equal(t, "gone", refused[0].Key)
	b.mustHave(map[string][]byte{"b": []byte("two")})
}

// Credentials are sent to the list's server only, whether the list or a redirect names another server.
func TestListCredentials(t *testing.T) {
	const token = "a-secret-token"
	b, s, other := newWebBed(t), webtest.New(t, false), webtest.New(t, false)
	b.credentials(map[string]string{"token": token + "\n"})
	other.Put("/far", []byte("far"))
	other.Put("/led", []byte("led"))
	s.Put("/l", []byte(listOf(other.URL+"/far", []byte("far"), "")+listOf("led", []byte("led"), "")))
	s.Handle("/led", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/led?X-Amz-Signature="+token, http.StatusFound)
	})
	_, _, err := b.run(s.URL + "/l")
	require.NoError(t, err)
	for _, r := range s.Requests("") {
		require.Equal(t, "Bearer "+token, r.Authorization)
	}
	require.Len(t, other.Requests(""), 2)
	for _, r := range other.Requests("") {
		require.Empty(t, r.Authorization)
		require.NotContains(t, fmt.Sprint(r.Header), token)
	}
	// Errors do not contain the signature of a URL.
	other.Close()
	b.dest = t.TempDir()
	b.change = func(c *Config) { c.Attempts = 1 }
	_, _, err = b.run(s.URL + "/l")
	require.Error(t, err)
	require.Contains(t, b.logs.String(), "/led")
	require.NotContains(t, b.logs.String()+err.Error(), token)

	b = newWebBed(t)
	b.credentials(map[string]string{"username": "me", "password": "my word"})
	_, _, err = b.run(s.URL + "/l")
	require.Error(t, err)
	seen := s.Requests("/l")
	require.Equal(t, "Basic bWU6bXkgd29yZA==", seen[len(seen)-1].Authorization)

	b = newWebBed(t)
	b.credentials(nil)
	_, status, err := b.run(s.URL + "/l")
	require.ErrorIs(t, err, store.ErrNoCredentials)
	require.False(t, status.Retryable)
}

// A file requested over https is fetched over https or not at all.
func TestNoStepDownFromHTTPS(t *testing.T) {
	b, s, plain := newWebBed(t), webtest.New(t, true), webtest.New(t, false)
	b.access.CAFile = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(b.access.CAFile, webtest.Authority(s), 0o600))
	plain.Put("/set/a", []byte("one"))
	listed(s, map[string][]byte{"a": []byte("one")})
	_, _, err := b.run(s.URL + "/set/list")
	require.NoError(t, err)

	b.dest = t.TempDir()
	s.Handle("/set/a", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL+"/set/a", http.StatusFound)
	})
	_, status, err := b.run(s.URL + "/set/list")
	require.ErrorIs(t, err, store.ErrDowngrade)
	require.False(t, status.Retryable)
	require.Empty(t, plain.Requests(""))
	b.mustHave(map[string][]byte{})

	// A server whose certificate is not trusted is not used either.
	b.access.CAFile = ""
	_, status, err = b.run(s.URL + "/set/list")
	require.ErrorContains(t, err, "certificate")
	require.False(t, status.Retryable)
}
