package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// Transient faults of the server are retried. Permanent ones fail the run, with the right Retryable.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		key       string
		fault     func(w http.ResponseWriter, r *http.Request, o fakeObject)
		always    bool
		fails     string
		retryable bool
		rest      bool // the other objects arrive anyway
	}{
		"internal error once": {key: "set/many/001", fault: status(500, "InternalError")},
		"throttled once":      {key: "set/many/001", fault: status(503, "SlowDown")},
		"truncated body":      {key: "set/d/e/middle", fault: truncated},
		"truncated range":     {key: "set/large", fault: truncated},
		"reset":               {key: "set/large", fault: reset},
		"flipped byte":        {key: "set/many/003", fault: flipped},
		"flipped in a range":  {key: "set/large", fault: flipped},
		"flipped always":      {key: "set/many/003", fault: flipped, always: true, fails: "checksum does not match", rest: true},
		"500 always":          {key: "set/many/003", fault: status(500, "InternalError"), always: true, fails: "InternalError", retryable: true, rest: true},
		"403 on one":          {key: "set/many/003", fault: status(403, "AccessDenied"), always: true, fails: "check the credentials and what they permit", rest: true},
		"403 on a large one":  {key: "set/large", fault: status(403, "AccessDenied"), always: true, fails: "set/large", rest: true},
		"wrong key":           {key: "", fault: status(403, "InvalidAccessKeyId"), always: true, fails: "check the credentials"},
		"no bucket":           {key: "", fault: status(404, "NoSuchBucket"), always: true, fails: "check the bucket's name"},
		"server away":         {key: "", fault: reset, always: true, fails: "Connection closed", retryable: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			want := b.dataset()
			var met atomic.Int64
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if test.key != "" && (key != test.key || r.Method != http.MethodGet) {
					return false
				}
				if met.Add(1) > 1 && !test.always {
					return false
				}
				b.fake.mu.Lock()
				o := b.fake.objects[key]
				b.fake.mu.Unlock()
				test.fault(w, r, o)
				return true
			}
			_, _, err := b.run("s3://bucket/set/")
			require.Positive(t, met.Load())
			if test.fails == "" {
				require.NoError(t, err)
				b.mustHave(want)
				return
			}
			require.ErrorContains(t, err, test.fails)
			var e *store.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, test.retryable, e.Retryable)
			require.NoFileExists(t, filepath.Join(b.dest, destination.CompleteFile))
			if test.rest {
				delete(want, test.key[len("set/"):])
				b.mustHave(want)
			}
		})
	}
}

func status(code int, name string) func(http.ResponseWriter, *http.Request, fakeObject) {
	return func(w http.ResponseWriter, _ *http.Request, _ fakeObject) { fail(w, code, name) }
}

func truncated(w http.ResponseWriter, r *http.Request, o fakeObject) {
	cut := &cutWriter{ResponseWriter: w, left: 700}
	(&fakeS3{gets: map[string]int{}}).serve(cut, r, "", o)
	panic(http.ErrAbortHandler)
}

// cutWriter writes the first left bytes, and discards the rest.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	_, err := c.ResponseWriter.Write(p[:n])
	c.ResponseWriter.(http.Flusher).Flush()
	return len(p), err
}

func reset(http.ResponseWriter, *http.Request, fakeObject) { panic(http.ErrAbortHandler) }

func flipped(w http.ResponseWriter, r *http.Request, o fakeObject) {
	o.data = append([]byte(nil), o.data...)
	o.data[0] ^= 1
	(&fakeS3{gets: map[string]int{}}).serve(w, r, "", o)
}

func TestChangedWhileFetching(t *testing.T) {
	for _, path := range []string{"many/002", "large"} {
		t.Run(path, func(t *testing.T) {
			b := newBed(t)
			want := b.dataset()
			want[path] = storetest.RandomBytes(99, 35*store.MiB)
			var met atomic.Int64
			b.fake.hook = func(_ http.ResponseWriter, r *http.Request, key string) bool {
				// The second range request for large, the only GET of many/002.
				if key == "set/"+path && r.Method == http.MethodGet && met.Add(1) == int64(1+len(path)%2) {
					b.fake.put(key, want[path])
				}
				return false
			}
			_, _, err := b.run("s3://bucket/set/")
			require.NoError(t, err)
			b.mustHave(want)
		})
	}
}

func TestGoneWhileFetching(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	b.fake.hook = func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		if r.URL.Query().Get("list-type") == "" {
			b.fake.delete("set/many/119")
		}
		return false
	}
	refused, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, `1 of 125 files could not be fetched, the first: the source lists it but does not have it: it was deleted meanwhile, or the listing is wrong; in that case add it to `+"`"+`exclude`+"`"+`: fetch "set/many/119"`)
	require.Empty(t, refused)
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Retryable, "the next run lists what is there then")
	delete(want, "many/119")
	b.fake.got()
	refused, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Empty(t, refused)
	require.Empty(t, b.fake.got(), "the others are there")
	b.mustHave(want)
}

// However many objects are deleted at the same time, the remaining ones arrive.
func TestManyGoneWhileFetching(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	b.fake.hook = func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		if r.URL.Query().Get("list-type") == "" {
			for i := range 100 {
				b.fake.delete(fmt.Sprintf("set/many/%03d", i))
			}
		}
		return false
	}
	b.change = func(c *Config) { c.Sync = true }
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, " could not be fetched")
	b.fake.got()
	_, _, err = b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Empty(t, b.fake.got())
	for path := range want {
		if strings.HasPrefix(path, "many/0") {
			delete(want, path)
		}
	}
	b.mustHave(want)
}

func TestStalledSource(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	var met atomic.Int64
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key != "set/d/e/middle" || r.Method != http.MethodGet || met.Add(1) > 1 {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(want["d/e/middle"])))
		w.Header().Set("Last-Modified", time.Unix(1_700_000_000, 0).UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", `"`+md5Hex(want["d/e/middle"])+`"`)
		for range 300 { // one byte at a time, until the client disconnects
			if _, err := w.Write([]byte{1}); err != nil {
				break
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return true
			case <-time.After(20 * time.Millisecond):
			}
		}
		return true
	}
	b.change = func(c *Config) { c.Stall, c.Attempts = briefly, 20 }
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.GreaterOrEqual(t, met.Load(), int64(2))
	b.mustHave(want)
}

// A download that waits for bandwidth does not count as stalled: it would be fetched again and again.
func TestLowBandwidthIsNoStall(t *testing.T) {
	b := newBed(t)
	want := map[string][]byte{}
	for i := range 40 {
		path := fmt.Sprintf("%02d", i)
		want[path] = storetest.RandomBytes(uint64(i), 8*store.KiB)
		b.fake.put("set/"+path, want[path])
	}
	b.change = func(c *Config) { c.Bandwidth, c.Parallel, c.Stall = 32*store.KiB, 32, 5*time.Second } // it takes 10 s
	began := time.Now()
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Greater(t, time.Since(began), 8*time.Second)
	gets := 0
	for _, n := range b.fake.got() {
		gets += n
	}
	// Each file is fetched once, but on a busy machine a download may really stall for that long.
	require.Less(t, gets, 45)
	b.mustHave(want)
}

func TestChecksWithoutChecksums(t *testing.T) {
	b := newBed(t)
	small, large := storetest.RandomBytes(1, 1000), storetest.RandomBytes(2, 40*store.MiB)
	parts := storetest.CompositeOf(large, 8*store.MiB)
	want := map[string][]byte{"simple": small, "simple-large": large, "parts": large, "told": large, "odd": small}
	b.fake.set("set/simple", fakeObject{data: small, etag: md5Hex(small)})
	b.fake.set("set/simple-large", fakeObject{data: large, etag: md5Hex(large)})
	b.fake.set("set/parts", fakeObject{data: large, etag: parts})
	b.fake.set("set/told", fakeObject{data: large, etag: storetest.CompositeOf(large, 9_123_457), parts: store.EqualParts(40*store.MiB, 9_123_457)})
	b.fake.set("set/odd", fakeObject{data: small, etag: "opaque"})
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	entries := b.mustHave(want)
	for path, kind := range map[string]string{
		"simple": store.CheckMD5, "simple-large": store.CheckMD5, "parts": store.CheckComposite, "told": store.CheckComposite, "odd": store.CheckSize,
	} {
		require.Equal(t, kind, entries[path].Check, path)
	}

	b.dest += "2"
	b.fake.set("set/simple-large", fakeObject{data: large, etag: md5Hex(small)})
	b.change = func(c *Config) { c.Checksum = ChecksumRequired }
	_, _, err = b.run("s3://bucket/set/simple-large")
	require.ErrorIs(t, err, store.ErrChecksum)
}

func TestNoRoom(t *testing.T) {
	b := newBed(t)
	b.dataset()
	b.fake.hook = func(_ http.ResponseWriter, r *http.Request, _ string) bool {
		require.NotEmpty(t, r.URL.Query().Get("list-type"), "nothing is fetched that does not fit")
		return false
	}
	b.fake.set("set/huge", fakeObject{data: make([]byte, 10), etag: "x"})
	b.change = func(c *Config) { c.Store = hugeStore{c.Store} }
	_, _, err := b.run("s3://bucket/set/")
	require.ErrorContains(t, err, "no room: ")
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.False(t, e.Retryable)
}

// hugeStore lists one object as larger than any disk.
type hugeStore struct{ store.Store }

func (h hugeStore) List(ctx context.Context, each func(store.Object) error) error {
	return h.Store.List(ctx, func(o store.Object) error {
		if o.Key == "set/huge" {
			o.Size = 1 << 55
		}
		return each(o)
	})
}

func TestBusyDestination(t *testing.T) {
	b := newBed(t)
	b.dataset()
	d, err := destination.Open(b.dest)
	require.NoError(t, err)
	defer d.Close()
	_, _, err = b.run("s3://bucket/set/")
	require.ErrorIs(t, err, destination.ErrBusy)
	var e *store.Error
	require.True(t, errors.As(err, &e) && e.Retryable)
}
