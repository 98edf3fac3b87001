package fetch

import (
	"fmt"
	"sort"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Orders in which files are fetched.
const (
	OrderName = "name"
	OrderSize = "size"
	OrderList = "list"
)

// plan is what a run has to do.
type plan struct {
	// fetch are the objects whose content is not here.
	fetch []store.Object
	// link are the files that are taken over from the previous version.
	link []Entry
	// keep are the files that are here already.
	keep []Entry
	// gone are the files that an earlier run fetched and that are no longer wanted.
	gone []Entry
	// replaced is the space of the old files that new ones replace.
	replaced need
	// shared is how many bytes of gone the previous version holds, too: removing the files does not
	// free them.
	shared int64
}

// makePlan compares the wanted objects with the manifest. trusts reports whether a check is enough, and
// present whether the file of an entry is unchanged.
func makePlan(files []store.Object, entries map[string]Entry, trusts func(check string) bool, present func(Entry) (bool, error)) (plan, error) {
	var p plan
	wanted := make(map[string]bool, len(files))
	for _, o := range files {
		wanted[o.Path] = true
		e, known := entries[o.Path]
		if !known {
			p.fetch = append(p.fetch, o)
			continue
		}
		here, err := present(e)
		if err != nil {
			return plan{}, err
		}
		switch {
		case here && e.object().Same(o) && trusts(e.Check):
			p.keep = append(p.keep, e)
		case here:
			p.replaced.bytes += e.Bytes
			p.replaced.inodes++
			p.fetch = append(p.fetch, o)
		default:
			p.fetch = append(p.fetch, o)
		}
	}
	for _, e := range entries {
		if !wanted[e.Path] {
			p.gone = append(p.gone, e)
		}
	}
	sort.Slice(p.gone, func(i, j int) bool { return p.gone[i].Path < p.gone[j].Path })
	return p, nil
}

// sortObjects sorts objects by name, by size (small ones first, so that many files are there soon), or in
// the order of list, followed by the objects that are not in list, by name.
func sortObjects(objects []store.Object, order string, list []string) error {
	rank := make(map[string]int, len(list))
	switch order {
	case OrderName, OrderSize, "":
	case OrderList:
		for i, path := range list {
			if _, there := rank[path]; !there {
				rank[path] = i - len(list)
			}
		}
	default:
		return fmt.Errorf("order %q is not known; it is %s, %s or %s", order, OrderName, OrderSize, OrderList)
	}
	sort.Slice(objects, func(i, j int) bool {
		a, b := objects[i], objects[j]
		if order == OrderSize && a.Size != b.Size {
			return a.Size < b.Size
		}
		if ra, rb := rank[a.Path], rank[b.Path]; ra != rb {
			return ra < rb
		}
		return a.Path < b.Path
	})
	return nil
}

// wholeLimit is the size in bytes above which objects are fetched in ranges.
const wholeLimit = 32 * store.MiB

// spanSize returns the length of the ranges of an object of size bytes: short enough to share among
// workers and to lose little in a kill, but not so short that there are too many.
func spanSize(size int64) int64 {
	return min(max(16*store.MiB, (size/1024+store.MiB-1)/store.MiB*store.MiB), 256*store.MiB)
}

// spans returns ranges of at most step bytes that cover the first size bytes, except for those in have,
// which must be in order and must not overlap.
func spans(size, step int64, have []store.Span) []store.Span {
	var out []store.Span
	gap := func(from, to int64) {
		for ; from < to; from += step {
			out = append(out, store.Span{Offset: from, Length: min(step, to-from)})
		}
	}
	from := int64(0)
	for _, h := range have {
		gap(from, h.Offset)
		from = h.End()
	}
	gap(from, size)
	return out
}

// disjoint returns the notes in order, without those that overlap an earlier one.
func disjoint(notes []journalNote) []journalNote {
	sorted := append([]journalNote(nil), notes...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Offset < sorted[j].Offset })
	var out []journalNote
	end := int64(0)
	for _, n := range sorted {
		if n.Offset >= end && n.Length > 0 {
			out = append(out, n)
			end = n.End()
		}
	}
	return out
}
