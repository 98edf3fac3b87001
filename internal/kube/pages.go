package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// pageSize is how many objects a page has: a large cluster's objects of a kind would not fit into the node
// daemon's memory, nor into the time of one request.
const pageSize = 500

// inPages calls read with each page of a list of a core kind. All pages are of the moment of the first one;
// if the API server has forgotten that moment meanwhile, the list fails. After an error, what was read is
// not the whole list.
func inPages[T any, P interface {
	*T
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, c *Client, what, resource string, options metav1.ListOptions, read func(P)) error {
	for options.Limit = pageSize; ; {
		page := P(new(T))
		if err := c.do(ctx, what, c.core.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec), page); err != nil {
			return err
		}
		read(page)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

func appendKept[T any](kept, items []T, keep func(*T) bool) []T {
	for i := range items {
		if keep(&items[i]) {
			kept = append(kept, items[i])
		}
	}
	return kept
}
