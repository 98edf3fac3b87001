package fetch

import (
	"encoding/json"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// wasComplete returns what an earlier run noted that has completed the same.
func (r *run) wasComplete() (c complete, was bool) {
	data, err := r.dest.Root.ReadFile(destination.CompleteFile)
	was = err == nil && json.Unmarshal(data, &c) == nil && c.selects(r.summary())
	return c, was
}

// mayBeObject refuses the object of a prefix's name in place of what was fetched from below
// the prefix: that may have been emptied by mistake, as with an empty listing, and such an
// object is often but the mark of a folder.
func (r *run) mayBeObject(objects []store.Object) error {
	if !r.Source.OrObject || len(objects) != 1 || objects[0].Key != r.Source.Object() {
		return nil
	}
	if _, was := r.wasComplete(); !was {
		return nil
	}
	for path := range r.entries {
		if path != objects[0].Path {
			return &store.Error{Err: fmt.Errorf("nothing is there any more below %s but an object of that name, and what was fetched is kept; to have the object, begin with an empty directory", r.Source.URL)}
		}
	}
	return nil
}
