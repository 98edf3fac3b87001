package s3store

import (
	"context"
	"errors"
	"net/http"
)

// errNextPage: a listing has more than its first answer holds.
var errNextPage = errors.New("the listing has another page")

type firstPage struct{}

// onlyFirstPage lets a listing fail with errNextPage where it would ask for its second page:
// minio's client keeps to itself whether an answer held all.
func onlyFirstPage(ctx context.Context) context.Context {
	return context.WithValue(ctx, firstPage{}, true)
}

// paged sends what minio's client asks for, but for pages that nobody wants.
type paged struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p paged) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Value(firstPage{}) != nil {
		if query := r.URL.Query(); query.Get("continuation-token") != "" || query.Get("marker") != "" {
			return nil, errNextPage
		}
	}
	return p.RoundTripper.RoundTrip(r)
}
