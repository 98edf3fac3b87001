package fetch

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// mayBeObject refuses the object of a prefix's name in place of what was fetched from below
// the prefix: that may have been emptied by mistake, as with an empty listing, and such an
// object is often but the mark of a folder. A later version that is begun has nothing yet:
// what was fetched is in the one before.
func (r *run) mayBeObject(objects []store.Object) error {
	if !r.Source.OrObject || len(objects) != 1 || objects[0].Key != r.Source.Object() {
		return nil
	}
	fetched := slices.Collect(maps.Keys(r.manifest.entries))
	if r.base != nil {
		fetched = slices.AppendSeq(fetched, maps.Keys(r.base.entries))
	}
	for _, path := range fetched {
		if path != objects[0].Path {
			return &store.Error{Err: fmt.Errorf("nothing is there any more below %s but an object of that name, and what was fetched is kept; to have the object, begin with an empty directory", r.Source.URL)}
		}
	}
	return nil
}
