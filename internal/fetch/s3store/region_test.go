package s3store

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// A bucket in another region works without a configured region: the server reports the region.
func TestRegionThatTheServerAsksFor(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	var wrong atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "/eu-north-7/s3/") {
			wrong.Add(1)
			w.WriteHeader(http.StatusBadRequest)
			if r.Method != http.MethodHead {
				fmt.Fprint(w, "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-north-7'</Message><Region>eu-north-7</Region></Error>")
			}
			return
		}
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
		if r.URL.Query().Get("list-type") == "2" {
			fmt.Fprint(w, `<ListBucketResult><Contents><Key>p/a</Key><Size>1</Size><ETag>"e"</ETag><LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents></ListBucketResult>`)
			return
		}
		w.Header().Set("Content-Length", "1")
		if r.Method == http.MethodGet {
			fmt.Fprint(w, "a")
		}
	}))
	t.Cleanup(server.Close)
	for name, key := range map[string]string{"below a prefix": "p/", "one object": "p/a"} {
		t.Run(name, func(t *testing.T) {
			wrong.Store(0)
			source := store.Source{Kind: store.KindS3, Bucket: "bucket", Key: key, Prefix: "p/"}
			b, err := New(source, Config{Endpoint: server.URL, Attempts: 1})
			require.NoError(t, err)
			var found []store.Object
			require.NoError(t, b.List(t.Context(), func(o store.Object) error { found = append(found, o); return nil }))
			require.Len(t, found, 1)
			stream, err := b.Open(t.Context(), found[0], store.Span{Length: 1})
			require.NoError(t, err)
			require.NoError(t, stream.Body.Close())
			require.LessOrEqual(t, wrong.Load(), int64(2), "it is asked once")
		})
	}
}
