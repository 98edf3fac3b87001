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

// list lists the source's objects and places them.
func (r *run) list(ctx context.Context) (placement, error) {
	r.progress.set(protocol.StateListing, "")
	caseInsensitive, err := r.dest.IsCaseInsensitive()
	if err != nil {
		return placement{}, err
	}
	var objects []store.Object
	listed, unselected := 0, 0
	err = r.eachListed(ctx, func(o store.Object, wanted bool) {
		listed++
		if wanted && r.selection.Unselected(o.Path) {
			unselected++
		}
		if wanted && r.selection.Wants(o.Path) {
			objects = append(objects, o)
		}
	})
	if err != nil {
		return placement{}, err
	}
	if unselected > 0 {
		r.progress.Note(fmt.Sprintf("%d of %d objects in %s match none of the patterns %s, so they are not fetched", unselected, listed, r.Source.URL, quoted(r.Paths, r.Elsewhere)))
	}
	if of, is := r.Store.(store.Revisioned); is {
		r.revision = of.Revision()
		r.progress.setRevision(r.revision)
	}
	if err := r.checkOrObject(objects); err != nil {
		return placement{}, err
	}
	p := place(objects, caseInsensitive)
	for _, refusal := range p.refused {
		r.noteRefusal(refusal)
	}
	if len(p.files) == 0 {
		return placement{}, r.emptyListingError(listed, len(objects), p.refused)
	}
	return p, nil
}

// emptyListingError returns the error of a listing without files. Its cause is more often a mistyped name or
// somebody's mistake than an empty source, and with --sync it would remove everything. Folder markers
// are not files: consoles leave them behind when everything else is deleted.
func (r *run) emptyListingError(listed, wanted int, refused []Refusal) error {
	var err error
	switch {
	case wanted == 0:
		err = fmt.Errorf("no files to fetch: none of %d objects in %s is selected%s; check the name, and that a prefix ends in a slash", listed, r.Source.URL, matching(r.Paths))
	case len(refused) == 0:
		err = fmt.Errorf("no files to fetch: of %d objects in %s, those that are selected%s only mark folders; check the name, and whether the files were deleted", listed, r.Source.URL, matching(r.Paths))
	default:
		err = fmt.Errorf("no files to fetch: of %d objects in %s, none that is selected%s can be a file; the first: %s; rename them in the source, or select others", listed, r.Source.URL, matching(r.Paths), refused[0])
	}
	return &store.Error{Err: err}
}

// eachListed calls each with every object of the source, and whether the source's URL selects it.
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

// quoted returns the quoted patterns, separated by commas.
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
