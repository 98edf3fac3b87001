package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/durable"
)

// A noted is the content of a note.
type noted interface {
	// about is what a note says, for error messages.
	about() string
}

// notes is a directory of notes of one kind about volumes. Each volume has its own file, named by the volume's LVM UUID.
type notes[T noted] string

func (d notes[T]) file(uuid string) string { return filepath.Join(string(d), filepath.Base(uuid)) }

// mayExist reports whether a volume has a note, or this cannot be determined.
func (d notes[T]) mayExist(uuid string) bool {
	_, err := os.Lstat(d.file(uuid))
	return !errors.Is(err, os.ErrNotExist)
}

// isKnown reports whether a volume is known to have a note.
func (d notes[T]) isKnown(uuid string) bool {
	_, err := os.Lstat(d.file(uuid))
	return err == nil
}

// read returns the note of a volume. It is empty if there is none.
func (d notes[T]) read(uuid string) (n T, err error) {
	b, err := os.ReadFile(d.file(uuid))
	if errors.Is(err, os.ErrNotExist) {
		return n, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("read %s, which says %s: %w", d.file(uuid), none.about(), err)
	}
	return n, nil
}

// write durably replaces the note of a volume. It is one line without spaces, not ReplaceJSON: the runbooks quote
// "stale":true from it (docs/disk-loss.md, docs/alerts.md).
func (d notes[T]) write(uuid string, n T) error {
	b, err := json.Marshal(n)
	if err == nil {
		err = durable.ReplaceFile(d.file(uuid), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", n.about(), err)
	}
	return nil
}

// remove removes the note of a volume, if there is one. The removal need not be durable: a note that reappears after a
// power cut is removed again, or its volume is gone.
func (d notes[T]) remove(uuid string) error {
	if err := os.Remove(d.file(uuid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		var none T
		return fmt.Errorf("remove the note that says %s: %w", none.about(), err)
	}
	return nil
}

// removeNotes removes all notes of a volume that is gone.
func (e *Engine) removeNotes(uuid string) error {
	return errors.Join(e.copyNotes.remove(uuid), e.invalidNotes.remove(uuid))
}
