package s3store

import (
	"context"
	"io"
	"net/http"
	"strings"
)

type nextPage struct{}

// beforeNextPage returns a context in which a listing ends before its next page if wanted returns
// false: minio's client does not report whether a response was the last page.
func beforeNextPage(ctx context.Context, wanted func() bool) context.Context {
	return context.WithValue(ctx, nextPage{}, wanted)
}

// paged sends the requests of minio's client, but returns an empty page for pages that are not wanted:
// the client would retry after an error.
type paged struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p paged) RoundTrip(r *http.Request) (*http.Response, error) {
	wanted, asked := r.Context().Value(nextPage{}).(func() bool)
	if query := r.URL.Query(); asked && (query.Has("continuation-token") || query.Has("marker")) && !wanted() {
		const empty = "<ListBucketResult></ListBucketResult>"
		return &http.Response{
			Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: io.NopCloser(strings.NewReader(empty)), ContentLength: int64(len(empty)), Request: r,
		}, nil
	}
	return p.RoundTripper.RoundTrip(r)
}
