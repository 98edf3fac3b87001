package fetch

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// mayBeObject refuses the object of a prefix's name in place of what was fetched from below
// the prefix: that may have been emptied by mistake, as with an empty listing, and such an
// object is often but the mark of a folder.
func (r *run) mayBeObject(objects []store.Object) error {
	if !r.Source.OrObject || len(objects) != 1 || objects[0].Key != r.Source.Object() {
		return nil
	}
	for path := range r.manifest.entries {
		if path != objects[0].Path {
			return &store.Error{Err: fmt.Errorf("nothing is there any more below %s but an object of that name, and what was fetched is kept; to have the object, begin with an empty directory", r.Source.URL)}
		}
	}
	return nil
}
