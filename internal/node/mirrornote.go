package node

import (
	"slices"
	"time"

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
	// UpToDate are the copies that are known to be up to date, like Behind. A copy in neither was made since, and from
	// which copy is unknown.
	UpToDate map[string]string `json:"upToDate,omitempty"`
	// Diverged: a copy in Behind has been active alone since, so each side has data that the other lacks. The kernel
	// may take such a copy for the newest, and would overwrite the others with it.
	Diverged bool `json:"stale,omitempty"`
}

func (n copyNote) about() string {
	if n.Volume == "" {
		return "which copies of a raid1 volume are out of date"
	}
	return "which copies of volume " + n.Volume + " are out of date"
}

func (n copyNote) isBehind(c lvm.Copy) bool { return n.Behind[c.UUID] != "" }

// isUpToDate reports whether a copy is known to be up to date. Without a note, each copy counts as that.
func (n copyNote) isUpToDate(c lvm.Copy) bool {
	if len(n.UpToDate) == 0 {
		return !n.isBehind(c)
	}
	return n.UpToDate[c.UUID] != ""
}

// hasUpToDate reports whether one of these copies is known to be up to date. Only such a copy can bring another up to
// date.
func (n copyNote) hasUpToDate(copies []lvm.Copy) bool {
	return slices.ContainsFunc(copies, n.isUpToDate)
}

func (n copyNote) allUpToDate(copies []lvm.Copy) bool {
	return !slices.ContainsFunc(copies, func(c lvm.Copy) bool { return !n.isUpToDate(c) })
}

// divergedCopies returns the copies that are present, out of date, and have been active alone since.
func (n copyNote) divergedCopies(copies []lvm.Copy) (diverged []lvm.Copy) {
	for _, c := range copies {
		if n.Diverged && !c.Missing && n.isBehind(c) {
			diverged = append(diverged, c)
		}
	}
	return diverged
}

// mayReturn reports whether one of these copies is known to be up to date, and its device was not removed from the
// group.
func (n copyNote) mayReturn(copies []lvm.Copy) bool {
	return slices.ContainsFunc(copies, func(c lvm.Copy) bool { return !c.Removed && n.isUpToDate(c) })
}

// with returns the note of a volume that is in use with the usable ones of these copies, at least one of which is up
// to date. inSync reports that these are in sync with each other.
func (n copyNote) with(copies []lvm.Copy, inSync bool, now time.Time) copyNote {
	next := copyNote{Volume: n.Volume, Since: now, Behind: map[string]string{}, UpToDate: map[string]string{}}
	for _, c := range copies {
		switch before := n.isBehind(c); {
		case isUsable(c) && (inSync || n.isUpToDate(c)):
			next.UpToDate[c.UUID] = c.Name
		case before:
			next.Behind[c.UUID] = c.Name
			next.Since, next.Diverged = n.Since, n.Diverged
		case !isUsable(c):
			next.Behind[c.UUID] = c.Name
		}
	}
	return next
}

// copyNotes is the directory of all copyNotes.
type copyNotes = notes[copyNote]
