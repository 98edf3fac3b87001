package kube

import (
	"context"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// maxObjects is the number of objects in a page: all objects of a kind in a large cluster would
	// not fit into the node daemon's memory, nor be read within the timeout of one request.
	maxObjects = 500
	// maxBytes limits the response to one request; decoding takes a multiple of it. Anybody may create
	// objects of 1.5 MiB each, so a page has as many objects as fit.
	maxBytes = 16 << 20
)

// errLargePage means that a page is larger than maxBytes.
var errLargePage = errors.New("the answer is too large")

// A query describes a list of a core kind, in one namespace or in all.
type query struct {
	what, namespace, resource string
	metav1.ListOptions
}

// inPages calls read with each page of a list. A page has maxObjects, or as many as fit into
// maxBytes. All pages are of the first page's resourceVersion; if the API server has compacted that
// meanwhile, the list fails. After an error, the pages that were read are not the whole list.
//
// Only one page of all lists of a client is in memory at a time, unless read keeps it; read must not
// list.
func inPages[T any, P interface {
	*T
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, c *Client, q query, read func(P)) error {
	for q.Limit = maxObjects; ; {
		page := P(new(T))
		err := c.page(ctx, q, page, func() { read(page) })
		switch {
		case errors.Is(err, errLargePage) && q.Limit > 1:
			q.Limit = max(1, q.Limit/4)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", q.what, err)
		}
		if q.Continue = page.GetContinue(); q.Continue == "" {
			return nil
		}
		q.Limit = min(2*q.Limit, maxObjects)
	}
}

// page reads one page into out and calls read, while no other page of the client is in memory.
func (c *Client) page(ctx context.Context, q query, out runtime.Object, read func()) error {
	if err := c.pages.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.pages.Release(1)
	data, err := c.answer(ctx, q)
	if err != nil {
		return err
	}
	if _, _, err := c.decoder.Decode(data, nil, out); err != nil {
		return err
	}
	read()
	return nil
}

// answer requests a page and returns the encoded response.
func (c *Client) answer(ctx context.Context, q query) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	body, err := c.core.Get().Namespace(q.namespace).Resource(q.resource).VersionedParams(&q.ListOptions, metav1.ParameterCodec).MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err == nil && len(data) > maxBytes {
		err = errLargePage
	}
	return data, err
}
