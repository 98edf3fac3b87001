package s3store

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestFoldersOf(t *testing.T) {
	objects := []store.Object{{Key: "a/x/1"}, {Key: "a/x/2"}, {Key: "a/y/1"}, {Key: "a/z"}}
	require.Equal(t, 1, foldersOf("", objects))
	require.Equal(t, 2, foldersOf("a/", objects))
	// A server may return keys outside the requested prefix, even shorter ones.
	require.Zero(t, foldersOf("a/long/prefix/", []store.Object{{Key: "a"}, {Key: ""}}))
}

// Each page is requested once, unless listing the folders separately is tried after the first page.
func TestListPages(t *testing.T) {
	for name, test := range map[string]struct {
		keys, page   int
		kind, prefix string
		fails        int      // number of the request that fails, from 1
		requests     []string // each prefix|delimiter, and the marker of each page but the first
	}{
		"one full page":      {keys: 1000, page: 1000, kind: store.KindS3, requests: []string{"|"}},
		"a page of its own":  {keys: 3, page: 7, kind: store.KindS3, requests: []string{"|"}},
		"folders":            {keys: 1200, page: 1000, kind: store.KindS3, requests: []string{"|", "|/", "0/|", "1/|", "2/|"}},
		"first version":      {keys: 5, page: 5, kind: store.KindPachyderm, requests: []string{"|"}},
		"pages of that":      {keys: 5, page: 2, kind: store.KindPachyderm, requests: []string{"|", "|0/00001", "|0/00003"}},
		"no folders":         {keys: 5, page: 2, kind: store.KindS3, prefix: "0/", requests: []string{"0/|", "0/|0/00001", "0/|0/00003"}},
		"a page that fails":  {keys: 5, page: 2, kind: store.KindS3, prefix: "0/", fails: 2, requests: []string{"0/|", "0/|0/00001", "0/|0/00001", "0/|0/00003"}},
		"a short first page": {keys: 5, page: 3, kind: store.KindS3, requests: []string{"|", "|/", "|", "|0/00002"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "key")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
			t.Setenv("PACH_TOKEN", "token")
			l := &listing{page: test.page, fails: test.fails}
			for i := range test.keys {
				l.keys = append(l.keys, fmt.Sprintf("%d/%05d", i/500, i))
			}
			server := httptest.NewServer(l)
			defer server.Close()
			b, err := New(store.Source{Kind: test.kind, Bucket: "bucket", Key: test.prefix}, Config{Endpoint: server.URL, Region: "us-east-1", Attempts: 3})
			require.NoError(t, err)
			var found []string
			require.NoError(t, b.List(t.Context(), func(o store.Object) error { found = append(found, o.Key); return nil }))
			require.ElementsMatch(t, l.keys, found)
			require.ElementsMatch(t, test.requests, l.requests)
		})
	}
}

// listing serves the keys of a bucket, page by page.
type listing struct {
	keys  []string // sorted
	page  int
	fails int // number of the request that fails, from 1

	mu       sync.Mutex
	requests []string
}

func (l *listing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	prefix, delimiter, mark := query.Get("prefix"), query.Get("delimiter"), max(query.Get("continuation-token"), query.Get("marker"), query.Get("start-after"))
	l.mu.Lock()
	l.requests = append(l.requests, prefix+"|"+delimiter+mark)
	failed := len(l.requests) == l.fails
	l.mu.Unlock()
	if failed {
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	var contents, folders []string
	last, more := "", false
	for _, key := range l.keys {
		folder, _, deeper := strings.Cut(strings.TrimPrefix(key, prefix), delimiter)
		switch {
		case !strings.HasPrefix(key, prefix) || key <= mark:
			continue
		case delimiter != "" && deeper:
			if folder = prefix + folder + delimiter; !slices.Contains(folders, folder) {
				folders = append(folders, folder)
			}
			continue
		case len(contents) == l.page:
			more = true
		}
		if more {
			break
		}
		contents, last = append(contents, key), key
	}
	fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%t</IsTruncated>", more)
	if more {
		fmt.Fprintf(w, "<NextContinuationToken>%s</NextContinuationToken><NextMarker>%[1]s</NextMarker>", last)
	}
	for _, key := range contents {
		fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>1</Size></Contents>", key)
	}
	for _, folder := range folders {
		fmt.Fprintf(w, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", folder)
	}
	fmt.Fprint(w, "</ListBucketResult>")
}
