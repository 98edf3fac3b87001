package fetch

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// fakeObject is an object of the fake server.
type fakeObject struct {
	data []byte
	etag string
	// crc64 is sent unless it is empty; it may be wrong on purpose.
	crc64 string
	// parts are the part sizes of a multipart upload, sent unless nil.
	parts []int64
}

// fakeS3 is an S3 server for reading. Its hook can respond instead, to inject faults.
type fakeS3 struct {
	*httptest.Server
	mu      sync.Mutex
	objects map[string]fakeObject
	gets    map[string]int
	// hook returns true if it has responded itself.
	hook func(w http.ResponseWriter, r *http.Request, key string) bool
}

func newFake(t *testing.T) *fakeS3 {
	t.Helper()
	f := &fakeS3{objects: map[string]fakeObject{}, gets: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// put stores an object with the checksums of its content.
func (f *fakeS3) put(key string, data []byte) {
	crc := store.NewCRC64()
	crc.Write(data)
	f.set(key, fakeObject{data: data, etag: md5Hex(data), crc64: store.Encode(crc.Sum(nil))})
}

func md5Hex(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

func (f *fakeS3) set(key string, o fakeObject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = o
}

func (f *fakeS3) delete(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, key)
}

// got returns the number of GETs served since the last call, by key.
func (f *fakeS3) got() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	gets := f.gets
	f.gets = map[string]int{}
	return gets
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	if f.hook != nil && f.hook(w, r, key) {
		return
	}
	if r.URL.Query().Get("list-type") == "2" {
		f.list(w, r)
		return
	}
	f.mu.Lock()
	o, there := f.objects[key]
	f.mu.Unlock()
	match := strings.Trim(r.Header.Get("If-Match"), `"`)
	switch {
	case !there:
		fail(w, http.StatusNotFound, "NoSuchKey")
		return
	case match != "" && match != o.etag:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	f.serve(w, r, key, o)
}

func (f *fakeS3) serve(w http.ResponseWriter, r *http.Request, key string, o fakeObject) {
	h := w.Header()
	h.Set("ETag", `"`+o.etag+`"`)
	h.Set("Last-Modified", time.Unix(1_700_000_000, 0).UTC().Format(http.TimeFormat))
	first, last, status := int64(0), int64(len(o.data))-1, http.StatusOK
	if n, err := strconv.Atoi(r.URL.Query().Get("partNumber")); err == nil && n <= len(o.parts) {
		first = store.Total(o.parts[:n-1])
		last, status = first+o.parts[n-1]-1, http.StatusPartialContent
	}
	if spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, to, _ := strings.Cut(spec, "-")
		first, _ = strconv.ParseInt(from, 10, 64)
		last, _ = strconv.ParseInt(to, 10, 64)
		status = http.StatusPartialContent
	}
	if status == http.StatusPartialContent {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(o.data)))
	} else if o.crc64 != "" {
		h.Set(s3store.HeaderCRC64, o.crc64)
		h.Set(s3store.HeaderType, "FULL_OBJECT")
	}
	h.Set("Content-Length", strconv.FormatInt(last-first+1, 10))
	if r.Method == http.MethodGet { // before the body: a client that has read all of it may call got immediately
		f.mu.Lock()
		f.gets[key]++
		f.mu.Unlock()
	}
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		_, _ = w.Write(o.data[first : last+1])
	}
}

func (f *fakeS3) list(w http.ResponseWriter, r *http.Request) {
	type content struct {
		Key, LastModified, ETag string
		Size                    int
	}
	var page struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		NextToken   string `xml:"NextContinuationToken"`
		Contents    []content
	}
	after := r.URL.Query().Get("start-after") + r.URL.Query().Get("continuation-token")
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	for key := range f.objects {
		if strings.HasPrefix(key, r.URL.Query().Get("prefix")) && key > after {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	const most = 50
	if len(keys) > most {
		keys, page.IsTruncated, page.NextToken = keys[:most], true, keys[most-1]
	}
	for _, key := range keys {
		o := f.objects[key]
		page.Contents = append(page.Contents, content{key, "2023-11-14T22:13:20.000Z", `"` + o.etag + `"`, len(o.data)})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page)
}

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s of the test</Message></Error>", code, code)
}

// bed runs fetch against the fake server.
type bed struct {
	t    *testing.T
	fake *fakeS3
	dest string
	// change may alter the configuration of the next run.
	change func(*Config)
}

// patient is the stall timeout of tests that are not about stalls: a server on a busy machine is silent, too.
const patient = 2 * time.Minute

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return &bed{t: t, fake: newFake(t), dest: filepath.Join(t.TempDir(), "dest"), change: func(*Config) {}}
}

func (b *bed) config(source string) Config {
	b.t.Helper()
	s, err := ParseSource(source)
	require.NoError(b.t, err)
	const attempts = 3
	from, err := s3store.New(s, s3store.Config{Endpoint: b.fake.URL, Attempts: attempts, Stall: patient})
	require.NoError(b.t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	config := Config{Source: s, Dest: b.dest, Store: from, Attempts: attempts, Stall: patient, Parallel: 4, Log: quiet}
	b.change(&config)
	return config
}

func (b *bed) run(source string) ([]Refusal, *Progress, error) {
	b.t.Helper()
	config := b.config(source)
	progress := NewProgress(ReadyAfter{})
	refused, err := Run(b.t.Context(), config, progress)
	status := progress.Status(time.Now())
	if err == nil {
		require.Equal(b.t, protocol.StateComplete, status.State)
		require.Equal(b.t, status.BytesTotal, status.BytesDone, "every byte is counted once")
		require.Equal(b.t, status.FilesTotal, status.FilesDone)
		require.FileExists(b.t, filepath.Join(b.dest, destination.CompleteFile))
		require.NoFileExists(b.t, filepath.Join(b.dest, destination.JournalFile))
	} else {
		require.Equal(b.t, protocol.StateFailed, status.State)
	}
	return refused, progress, err
}

// mustHave checks that the destination has exactly these files, and that each is
// in the manifest.
func (b *bed) mustHave(want map[string][]byte) map[string]Entry {
	b.t.Helper()
	d, err := destination.Open(b.dest)
	require.NoError(b.t, err)
	defer d.Close()
	m, err := openManifest(d)
	require.NoError(b.t, err)
	m.Close()
	got := map[string][]byte{}
	require.NoError(b.t, filepath.WalkDir(b.dest, func(path string, entry os.DirEntry, err error) error {
		rel, _ := filepath.Rel(b.dest, path)
		if rel == store.ControlDir {
			return filepath.SkipDir
		}
		if err != nil || entry.IsDir() {
			return err
		}
		require.True(b.t, entry.Type().IsRegular(), rel)
		got[rel], err = os.ReadFile(path)
		require.Contains(b.t, m.entries, rel)
		return err
	}))
	require.Len(b.t, got, len(want))
	for path, data := range want {
		require.True(b.t, bytes.Equal(data, got[path]), "%s holds something else", path)
	}
	require.Len(b.t, m.entries, len(want), "the manifest says what is there, and nothing else")
	return m.entries
}
