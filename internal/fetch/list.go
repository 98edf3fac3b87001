package fetch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// list asks the source for its objects and places them.
func (r *run) list(ctx context.Context) (placement, error) {
	r.progress.set(protocol.StateListing, "")
	folds, err := r.dest.Folds()
	if err != nil {
		return placement{}, err
	}
	var objects []store.Object
	listed, nobodys := 0, 0
	err = r.eachListed(ctx, func(o store.Object, wanted bool) {
		listed++
		if wanted && r.selection.Nobodys(o.Path) {
			nobodys++
		}
		if wanted && r.selection.Wants(o.Path) {
			objects = append(objects, o)
		}
	})
	if err != nil {
		return placement{}, err
	}
	if nobodys > 0 {
		r.progress.Note(fmt.Sprintf("%d of %d objects in %s match none of the patterns %s, so nobody fetches them", nobodys, listed, r.Source.URL, quoted(r.Paths, r.Elsewhere)))
	}
	if of, is := r.Store.(store.Revised); is {
		r.revision = of.Revision()
		r.progress.revised(r.revision)
	}
	if len(objects) == 0 {
		// An empty listing is more often a slip in the name than an empty source, and
		// with --sync it would remove everything.
		return placement{}, &store.Error{Err: fmt.Errorf("nothing is there: of %d objects in %s none is wanted%s; check the name, and that a prefix ends in a slash", listed, r.Source.URL, matching(r.Paths))}
	}
	if err := r.mayBeObject(objects); err != nil {
		return placement{}, err
	}
	p := place(objects, folds)
	for _, refusal := range p.refused {
		r.note(refusal)
	}
	return p, nil
}

// eachListed calls each with all objects of the source, and whether it names them.
func (r *run) eachListed(ctx context.Context, each func(o store.Object, wanted bool)) error {
	err := r.Store.List(ctx, func(o store.Object) error {
		path, wanted := r.Source.Path(o.Key)
		o.Path = path
		each(o, wanted)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", r.Source.URL, err)
	}
	return nil
}

// quoted lists patterns.
func quoted(lists ...[]string) string {
	var out []string
	for _, pattern := range slices.Concat(lists...) {
		out = append(out, strconv.Quote(pattern))
	}
	return strings.Join(out, ", ")
}

func matching(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return " by " + quoted(paths)
}
