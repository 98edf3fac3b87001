package s3store

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// client sends requests that are signed for the bucket's region. If a request was signed for another
// region, the server's error names the right one.
type client struct {
	config Config
	source store.Source

	mu   sync.Mutex
	core *connection
}

func (c *client) now() *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core
}

// call makes a request, and repeats it if the server reports that the bucket is in another region than
// the request was signed for.
func (c *client) call(ctx context.Context, request func(*connection) error) error {
	core := c.now()
	err := request(core)
	region := c.corrected(ctx, core, err)
	if region == "" || c.source.Kind == store.KindPachyderm {
		return err
	}
	config := c.config
	config.Region = region
	moved, connectErr := config.connect(c.source)
	if connectErr != nil {
		return err
	}
	c.mu.Lock()
	c.core = moved
	c.mu.Unlock()
	return request(moved)
}

// corrected returns the region that a server's error names; empty for any other error. The response to
// a HEAD request has no body that could name it, so a listing is requested instead.
func (c *client) corrected(ctx context.Context, core *connection, err error) string {
	var response minio.ErrorResponse
	if !errors.As(err, &response) {
		return ""
	}
	if response.StatusCode == http.StatusBadRequest && response.Region == "" && response.Code == "400 Bad Request" {
		for info := range core.ListObjectsIter(ctx, c.source.Bucket, minio.ListObjectsOptions{MaxKeys: 1}) {
			errors.As(info.Err, &response)
			break
		}
	}
	switch {
	case response.Region == "":
		return ""
	case response.Code == "AuthorizationHeaderMalformed", response.Code == "InvalidRegion", response.Code == "PermanentRedirect",
		response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusMovedPermanently:
		return response.Region
	}
	return ""
}
