package fetch

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// journalNote is one line of the journal: a completely received span of an object, the temporary file that
// holds it, and its CRC. The journal lets a run resume after a kill. After a power cut the journal may
// list bytes that are not on disk, so its reader reads the bytes and compares the CRC.
type journalNote struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	ETag     string    `json:"etag,omitempty"`
	Version  string    `json:"version,omitempty"`
	Modified time.Time `json:"modified,omitzero"`
	Temp     string    `json:"temp"`
	store.Span
	CRC64 uint64 `json:"crc64"`
	// Check and Sum are set if the note is about a whole, verified object.
	Check string `json:"check,omitempty"`
	Sum   string `json:"sum,omitempty"`
	// ETagMismatch is as in Entry.
	ETagMismatch bool `json:"etagMismatch,omitempty"`
	// Dropped ends all earlier notes about the path; only Path is set, too.
	Dropped bool `json:"dropped,omitempty"`
}

// parseNote returns the note of a line; false if the line is damaged.
func parseNote(line []byte) (n journalNote, good bool) {
	if json.Unmarshal(line, &n) != nil || checkPath(n.Path) != nil || n.Offset < 0 || n.Length < 0 || n.End() > n.Size {
		return journalNote{}, false
	}
	return n, true
}

func (n journalNote) object() store.Object {
	return store.Object{Path: n.Path, Size: n.Size, ETag: n.ETag, Version: n.Version, Modified: n.Modified}
}

// crc returns the CRC64 of the noted bytes as a hash does.
func (n journalNote) crc() []byte { return binary.BigEndian.AppendUint64(nil, n.CRC64) }

// isIn reports whether the noted bytes are in the file, at their place.
func (n journalNote) isIn(ctx context.Context, file io.ReaderAt, buf []byte) (bool, error) {
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, store.NewSection(file, n.Span), buf); err != nil {
		return false, err
	}
	return bytes.Equal(crc.Sum(nil), n.crc()), nil
}

// leftovers is what earlier runs have left of one object.
type leftovers struct {
	temp  string
	notes []journalNote
}

// journal is the log of notes; many workers write to it.
type journal struct {
	mu  sync.Mutex
	log *jsonLog
}

// openJournal reads what earlier runs have left, by path: for each object, the notes about each of its temporary files, in
// the order of receipt.
func openJournal(d *destination.Dir) (*journal, map[string][]*leftovers, error) {
	noted := make(map[string][]*leftovers)
	l, err := openLog(d.Root, destination.JournalFile, func(line []byte) {
		n, good := parseNote(line)
		if !good {
			return
		}
		if n.Dropped {
			delete(noted, n.Path)
			return
		}
		r := latest(noted[n.Path])
		if r == nil || r.temp != n.Temp {
			r = &leftovers{temp: n.Temp}
			noted[n.Path] = append(noted[n.Path], r)
		}
		r.notes = append(r.notes, n)
	})
	return &journal{log: l}, noted, err
}

// latest returns the last one; nil if there is none.
func latest(all []*leftovers) *leftovers {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// of returns r if it is about exactly this object, else nil.
func (r *leftovers) of(o store.Object) *leftovers {
	if r == nil || len(r.notes) == 0 || !r.notes[0].object().Same(o) {
		return nil
	}
	return r
}

// bytes returns how many bytes of the object are on disk if the notes are true.
func (r *leftovers) bytes() (total int64) {
	for _, n := range r.notes {
		total += n.Length
	}
	return total
}

// drop ends the notes about a path, because what was received is about to be removed: a file that equals it was then put
// there by another program.
func (j *journal) drop(path string) error { return j.write(journalNote{Path: path, Dropped: true}) }

func (j *journal) write(n journalNote) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log.append(n)
}
