package fetch

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// If the server provides no checksum of an upload, the object is read back: the local data may be
// deleted on the strength of "verified".
func TestPutReadsBackWhatHasNoChecksum(t *testing.T) {
	sent := []byte("what a user wrote")
	const looksLikeMD5 = "0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		got, etag string
		whole     bool
	}{
		"whole":                            {string(sent), "of no kind", true},
		"of the same length":               {"what a user wrotE", "of no kind", false},
		"an ETag that is no MD5":           {string(sent), looksLikeMD5, true},
		"and another content":              {"what a user wrotE", looksLikeMD5, false},
		"an ETag that is none of parts":    {string(sent), looksLikeMD5 + "-1", true},
		"another content of so many parts": {"what a user wrotE", looksLikeMD5 + "-1", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), sent, 0o600))
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method != http.MethodPut {
					return false
				}
				_, _ = io.Copy(io.Discard, r.Body)
				b.fake.set(key, fakeObject{data: []byte(c.got), etag: c.etag})
				w.Header().Set("ETag", `"`+c.etag+`"`)
				return true
			}
			err := b.upload(dir, s3store.Config{Attempts: 2, Stall: patient})
			if c.whole {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, store.ErrChecksum)
			}
		})
	}
}

// The beginning of a file that is still being written does not replace another object. If there is no
// object, or only an earlier beginning of the file, it may be uploaded.
func TestPutReplacesNothingByTheBeginningOfAFile(t *testing.T) {
	for name, c := range map[string]struct {
		there  string
		denied bool
		want   string
	}{
		"an object is there":   {"whole and good", false, "whole and good"},
		"a shorter one":        {"old", false, "old"},
		"a beginning is there": {"beg", false, "begun"},
		"one may be there":     {"beg", true, "beg"},
		"none is there":        {"", false, "begun"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			dir := t.TempDir()
			file := filepath.Join(dir, "f")
			require.NoError(t, os.WriteFile(file, []byte("begun"), 0o600))
			if c.there != "" {
				b.fake.put("out/f", []byte(c.there))
			}
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method == http.MethodHead {
					f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
					if err == nil {
						_, err = f.WriteString(", and more")
						err = errors.Join(err, f.Close())
					}
					if err != nil {
						t.Error(err)
					}
					if c.denied {
						w.WriteHeader(http.StatusForbidden)
						return true
					}
				}
				return b.takesAnything(w, r, key)
			}
			require.ErrorIs(t, b.upload(dir, s3store.Config{Attempts: 1, Stall: patient}), store.ErrChanged)
			require.Equal(t, c.want, b.at("out/f"))
		})
	}
}

// upload uploads a directory to out/ on the fake server.
func (b *bed) upload(dir string, s3 s3store.Config) error {
	b.t.Helper()
	target, err := ParseSource("s3://bucket/out/")
	require.NoError(b.t, err)
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	s3.Endpoint = b.fake.URL
	_, err = Put(b.t.Context(), PutConfig{Dir: dir, Target: target, S3: s3, Memory: 64 * store.MiB, Log: quiet}, NewProgress(ReadyAfter{}))
	return err
}

// takes makes the fake server accept uploads, whole or in parts, and store data.
func (b *bed) takes(w http.ResponseWriter, r *http.Request, key string, data []byte) bool {
	switch {
	case r.Method == http.MethodPost && r.URL.Query().Has("uploads"):
		fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>")
	case r.Method == http.MethodPost:
		b.fake.put(key, data)
		fmt.Fprint(w, "<CompleteMultipartUploadResult><Bucket>bucket</Bucket><ETag>e</ETag></CompleteMultipartUploadResult>")
	case r.Method == http.MethodPut:
		_, _ = io.Copy(io.Discard, r.Body)
		if !r.URL.Query().Has("uploadId") {
			b.fake.put(key, data)
		}
		w.Header().Set("ETag", `"e"`)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		return false
	}
	return true
}

// S3 requires the length of every upload, including an empty one.
func TestPutTellsTheLength(t *testing.T) {
	for _, size := range []int64{0, 100} {
		b := newBed(t)
		dir := t.TempDir()
		data := storetest.RandomBytes(1, size)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), data, 0o600))
		var puts, untold atomic.Int64
		b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
			if r.Method == http.MethodPut {
				puts.Add(1)
				if r.ContentLength < 0 || len(r.TransferEncoding) > 0 || size == 0 && r.ContentLength != 0 {
					untold.Add(1)
				}
			}
			return b.takes(w, r, key, data)
		}
		require.NoError(t, b.upload(dir, s3store.Config{Attempts: 1}))
		require.EqualValues(t, 1, puts.Load())
		require.Zero(t, untold.Load(), "an upload of %d bytes came without its length", size)
	}
}

// A server that accepts a request and never responds, or stops reading it, blocks an upload
// only until the stall timeout.
func TestPutStalls(t *testing.T) {
	is := func(method, query string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && (query == "" && r.URL.RawQuery == "" || query != "" && r.URL.Query().Has(query))
		}
	}
	small, large := storetest.RandomBytes(1, 100), storetest.RandomBytes(2, s3store.UploadPart+1)
	for name, test := range map[string]struct {
		data  []byte
		hangs func(*http.Request) bool
		reads bool
	}{
		"look":              {small, is(http.MethodHead, ""), false},
		"send":              {small, is(http.MethodPut, ""), true},
		"send, and no room": {large[:s3store.UploadPart], is(http.MethodPut, ""), false},
		"begin parts":       {large, is(http.MethodPost, "uploads"), true},
		"send a part":       {large, is(http.MethodPut, "partNumber"), true},
		"complete":          {large, is(http.MethodPost, "uploadId"), true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), test.data, 0o600))
			ended := make(chan struct{})
			t.Cleanup(func() { close(ended) })
			var met, most atomic.Int64
			most.Store(1000)
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if !test.hangs(r) || met.Add(1) > most.Load() {
					return b.takes(w, r, key, test.data)
				}
				if test.reads {
					_, _ = io.Copy(io.Discard, r.Body)
				}
				<-ended
				return true
			}
			s3 := s3store.Config{Attempts: 2, Stall: 500 * time.Millisecond, AnswerTimeout: 200 * time.Millisecond}
			err := b.upload(dir, s3)
			require.ErrorIs(t, err, store.ErrStalled)
			var e *store.Error
			require.ErrorAs(t, err, &e)
			require.True(t, e.Retryable)

			met.Store(0)
			most.Store(1)
			s3.Attempts, s3.Stall, s3.AnswerTimeout = 20, 2*time.Second, 2*time.Second // a busy machine stalls, too
			require.NoError(t, b.upload(dir, s3))
			require.Equal(t, md5Hex(test.data), b.fake.objects["out/f"].etag)
		})
	}
}

// A server that responds late has not stalled: it had received everything, and may read it first.
func TestPutIsAnsweredLate(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	data := storetest.RandomBytes(1, 100)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), data, 0o600))
	const stall = 8 * time.Second
	sent := 0
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if r.Method == http.MethodPut {
			sent++
			time.Sleep(stall + time.Second)
		}
		return b.takes(w, r, key, data)
	}
	require.NoError(t, b.upload(dir, s3store.Config{Attempts: 1, Stall: stall}))
	require.Equal(t, 1, sent)
}
