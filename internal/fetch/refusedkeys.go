package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// isDone reports whether a run need not list the source: without Sync, if an earlier run has completed the same
// selection and refused no key. A refused key may have been removed or renamed since. It sets r.retriesRefused.
func (r *run) isDone() bool {
	c, was := r.wasComplete()
	r.retriesRefused = was && !r.Sync && c.Refused > 0
	return was && !r.Sync && c.Refused == 0 && r.completeAlready()
}

// refuseChanged refuses to fetch objects whose path holds something that no run left there, if an earlier run has
// completed the selection except for refused keys. Programs may have used the directory since, and without Sync this run
// is only about the refused keys.
func (r *run) refuseChanged(p *plan) error {
	if !r.retriesRefused {
		return nil
	}
	var first error
	p.fetch = slices.DeleteFunc(p.fetch, func(o store.Object) bool {
		changed, err := r.isChanged(o)
		if first == nil {
			first = err
		}
		if changed {
			r.noteRefusal(Refusal{o.Key, "its path holds something that was changed or created here, so it was not fetched; remove that, or move it elsewhere"})
		}
		return changed
	})
	return first
}

// isChanged reports whether the path of an object holds something else than a file that a run has fetched.
func (r *run) isChanged(o store.Object) (bool, error) {
	if r.leftovers[o.Path].of(o) != nil {
		return false, nil // a killed run may have fetched the file, and not entered it into the manifest
	}
	if e, known := r.manifest.entries[o.Path]; known {
		return replaced(r.dest, e)
	}
	_, err := r.dest.Lstat(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return false, nil // fetching it reports what is in the way
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", o.Path, err)
	}
	return true, nil
}
