package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/lvm"
)

// A copyNote records which copies of a raid1 volume are out of date, because the volume was in use without
// them. The superblock of such a copy does not show that: it was not written while its disk was missing. A
// person who removes the note accepts the old data of such a copy.
type copyNote struct {
	Volume string `json:"volume"` // GROUP/NAME, for people
	// Since is when the first of the copies was found to be out of date.
	Since time.Time `json:"since"`
	// Behind are the copies that are out of date: the names of the hidden volumes that hold them, by the UUIDs of
	// these volumes.
	Behind map[string]string `json:"behind"`
	// Current is the activation of the volume (activationOf) in which a copy that was up to date has been in
	// use. Whatever is in sync in the same activation is up to date.
	Current string `json:"current,omitempty"`
	// Stale means that copies in Behind have been active alone since. The kernel may take them for the newest, and
	// would overwrite the others with them.
	Stale bool `json:"stale,omitempty"`
}

// old returns the names of the copies that are present, out of date, and have been active alone since.
func (n copyNote) old(copies []lvm.Copy) (names []string) {
	for _, c := range copies {
		if n.Stale && !c.Missing && n.Behind[c.UUID] != "" {
			names = append(names, c.Name)
		}
	}
	return names
}

// with returns the note with these copies out of date, as seen in this activation.
func (n copyNote) with(behind map[string]string, activation string, now time.Time) copyNote {
	if !slices.ContainsFunc(slices.Collect(maps.Keys(behind)), func(uuid string) bool { return n.Behind[uuid] != "" }) {
		n.Since = now
	}
	n.Behind, n.Current = behind, activation
	return n
}

// copyNotes is the directory of all copyNotes. Each volume has its own file, named by the volume's UUID.
type copyNotes string

func (d copyNotes) file(uuid string) string { return filepath.Join(string(d), filepath.Base(uuid)) }

// exists reports whether a volume has a note, or this cannot be determined.
func (d copyNotes) exists(uuid string) bool {
	_, err := os.Lstat(d.file(uuid))
	return !errors.Is(err, os.ErrNotExist)
}

// read returns the note of a volume. It is empty if there is none.
func (d copyNotes) read(uuid string) (n copyNote, err error) {
	b, err := os.ReadFile(d.file(uuid))
	if errors.Is(err, os.ErrNotExist) {
		return n, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		return copyNote{}, fmt.Errorf("read %s, which says which copies are out of date: %w", d.file(uuid), err)
	}
	return n, nil
}

// write durably replaces the note of a volume.
func (d copyNotes) write(uuid string, n copyNote) error {
	b, err := json.Marshal(n)
	if err == nil {
		err = durable.ReplaceFile(d.file(uuid), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note which copies of volume %s are out of date: %w", n.Volume, err)
	}
	return nil
}

// remove removes the note of a volume, if there is one. The removal need not be durable: a note that reappears
// after a power cut is removed again.
func (d copyNotes) remove(uuid string) error {
	if err := os.Remove(d.file(uuid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the note of copies: %w", err)
	}
	return nil
}
