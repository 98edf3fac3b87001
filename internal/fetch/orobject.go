package fetch

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// checkOrObject returns an error if the object with the prefix's own name would replace files fetched
// from below the prefix. The prefix may have been emptied by mistake, as with an empty listing, and
// such an object is often only a folder marker. A later version that was just begun has no files yet,
// so those of the base count, too.
func (r *run) checkOrObject(objects []store.Object) error {
	if !r.Source.OrObject || len(objects) != 1 || objects[0].Key != r.Source.Object() {
		return nil
	}
	fetched := slices.Collect(maps.Keys(r.manifest.entries))
	if r.base != nil {
		fetched = slices.AppendSeq(fetched, maps.Keys(r.base.entries))
	}
	for _, path := range fetched {
		if path != objects[0].Path {
			return &store.Error{Err: fmt.Errorf("no objects are left below %s, only one of that name, and the fetched files are kept; to fetch that object, use an empty directory", r.Source.URL)}
		}
	}
	return nil
}
