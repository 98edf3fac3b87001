package fetch

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// An object that was uploaded in parts of any sizes is verified if the server reports the sizes.
func TestParts(t *testing.T) {
	small, large := storetest.RandomBytes(1, 12*store.MiB+5), storetest.RandomBytes(2, 40*store.MiB)
	few, many := []int64{5 * store.MiB, 6 * store.MiB, store.MiB + 5}, []int64{9 * store.MiB, 5 * store.MiB, 26 * store.MiB}
	odd := storetest.CompositeOf(small, 5*store.MiB+1)
	type test struct {
		object fakeObject
		fault  bool // the first response has its first byte flipped
		check  string
		gets   int
	}
	for name, test := range map[string]test{
		"unequal":              {fakeObject{data: small, etag: storetest.CompositeOf(small, few...), parts: few}, false, store.CheckComposite, 1},
		"unequal, large":       {fakeObject{data: large, etag: storetest.CompositeOf(large, many...), parts: many}, false, store.CheckComposite, 3},
		"altered":              {fakeObject{data: small, etag: odd, parts: store.EqualParts(12*store.MiB+5, 5*store.MiB+1)}, true, store.CheckComposite, 2},
		"altered, unequal":     {fakeObject{data: small, etag: storetest.CompositeOf(small, few...), parts: few}, true, store.CheckComposite, 2},
		"altered, large":       {fakeObject{data: large, etag: storetest.CompositeOf(large, many...), parts: many}, true, store.CheckComposite, 6},
		"not told":             {fakeObject{data: small, etag: odd}, false, store.CheckSize, 1},
		"not told, large":      {fakeObject{data: large, etag: storetest.CompositeOf(large, 9_123_457)}, false, store.CheckSize, 3},
		"told and of no sense": {fakeObject{data: small, etag: odd, parts: []int64{1, 2, 3}}, false, store.CheckSize, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.fake.set("set/o", test.object)
			var met atomic.Int64
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				first := r.Header.Get("Range") == "" || strings.HasPrefix(r.Header.Get("Range"), "bytes=0-")
				if !test.fault || r.Method != http.MethodGet || key != "set/o" || !first || met.Add(1) > 1 {
					return false
				}
				require.NoFileExists(t, filepath.Join(b.dest, "o"))
				flipped(w, r, test.object)
				return true
			}
			_, _, err := b.run("s3://bucket/set/")
			require.NoError(t, err)
			require.Equal(t, test.check, b.mustHave(map[string][]byte{"o": test.object.data})["o"].Check)
			gets := b.fake.got()["set/o"]
			if test.fault {
				gets++
			}
			require.Equal(t, test.gets, gets)
		})
	}
}

// A transient error of a request for the parts is retried. A server that keeps failing does not count as
// one that knows no parts: the run fails with a retryable error.
func TestPartsAreAskedForAgain(t *testing.T) {
	b := newBed(t)
	data, sizes := storetest.RandomBytes(1, 12*store.MiB+5), []int64{5 * store.MiB, 6 * store.MiB, store.MiB + 5}
	b.fake.set("set/o", fakeObject{data: data, etag: storetest.CompositeOf(data, sizes...), parts: sizes})
	var met, times atomic.Int64
	times.Store(1)
	b.fake.hook = func(w http.ResponseWriter, r *http.Request, _ string) bool {
		if r.URL.Query().Get("partNumber") != "2" || met.Add(1) > times.Load() {
			return false
		}
		fail(w, http.StatusServiceUnavailable, "SlowDown")
		return true
	}
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.Equal(t, store.CheckComposite, b.mustHave(map[string][]byte{"o": data})["o"].Check)

	b.dest += "2"
	times.Store(1000)
	_, _, err = b.run("s3://bucket/set/")
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Retryable)
	require.NoFileExists(t, filepath.Join(b.dest, "o"))
}
