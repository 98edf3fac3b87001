package fetch

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// readReceived reads the journal of a load that was not completed. The last files that a killed load has given
// their names are in its journal and not in the manifest. Notes about objects that the manifest describes are not kept:
// the journal names all objects that the load has received.
func (u *upload) readReceived() {
	damaged := 0
	// A torn last line is about a file that has no name yet.
	_, err := readLinesIn(u.Dir, destination.JournalFile, func(line []byte) {
		if n, good := parseNote(line); good {
			u.keepNote(n)
		} else {
			damaged++
		}
	})
	if err == nil && damaged > 0 {
		err = fmt.Errorf("%d lines are damaged", damaged)
	}
	if err != nil {
		u.journalDamaged = true
		u.Log.WithError(err).Warn("Cannot read all of .flexlvm/journal.jsonl; a file that is not as it was fetched replaces no object that may have changed")
	}
}

// keepNote stores a note about an object that the manifest does not describe. Notes are in the order of receipt, so one
// that the manifest describes replaces the earlier notes of its path, about objects whose content is normally not here any
// more.
func (u *upload) keepNote(n journalNote) {
	if e, known := u.fetched[n.Path]; known && e.object().Same(n.object()) {
		delete(u.received, n.Path)
		return
	}
	for _, r := range u.received[n.Path] {
		if r.of(n.object()) != nil {
			r.notes = append(r.notes, n)
			return
		}
	}
	if u.received == nil {
		u.received = map[string][]*leftovers{}
	}
	u.received[n.Path] = append(u.received[n.Path], &leftovers{notes: []journalNote{n}})
}

// wasReceived reports whether the journal notes that an object with this ETag was received for a path.
func (u *upload) wasReceived(path, etag string) bool {
	return slices.ContainsFunc(u.received[path], func(r *leftovers) bool { return r.notes[0].ETag == etag })
}

// isReceived reports whether a file has exactly the content of an object that the journal notes.
func (u *upload) isReceived(ctx context.Context, o store.Object, file io.ReaderAt, crc, buf []byte) (bool, error) {
	for _, r := range u.received[o.Path] {
		if r.notes[0].Size != o.Size {
			continue
		}
		if is, err := r.describe(ctx, file, crc, buf); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// describe reports whether a file of the object's size, with this CRC, has the noted bytes everywhere. A range may be
// noted more than once: after a power cut, ranges that were lost are received again.
func (r *leftovers) describe(ctx context.Context, file io.ReaderAt, crc, buf []byte) (bool, error) {
	var found []store.Span
	for _, n := range r.notes {
		if n.Length == n.Size {
			if bytes.Equal(n.crc(), crc) {
				return true, nil
			}
			continue
		}
		is, err := n.isIn(ctx, file, buf)
		if err != nil {
			return false, err
		}
		if is {
			found = append(found, n.Span)
		}
	}
	slices.SortFunc(found, func(a, b store.Span) int { return cmp.Compare(a.Offset, b.Offset) })
	end := int64(0)
	for _, s := range found {
		if s.Offset > end {
			return false, nil
		}
		end = max(end, s.End())
	}
	return len(found) > 0 && end == r.notes[0].Size, nil
}
