package volumegroup

import (
	"maps"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Ledger is what the node remembers of the disks that it has taken. It is written before
// a disk is touched, and nothing is ever taken out of it but Waits.
type Ledger struct {
	// Groups by the name of the declaration that made them.
	Groups map[string]MadeGroup `json:"groups,omitempty"`
	// Disks by their IDs.
	Disks map[string]TakenDisk `json:"disks,omitempty"`
	// Waits says by the names of declarations since when their groups, which are yet to be made,
	// wait for a disk that cannot be taken at the moment.
	Waits map[string]time.Time `json:"waits,omitempty"`
}

// A MadeGroup is a volume group that a declaration made here.
type MadeGroup struct {
	Group volume.Group `json:"group"`
	UUID  string       `json:"uuid"`
	// Lost is the UUID of one that was made before and is gone, while UUID is empty: only
	// disks that are asked for again make another in its place.
	Lost string `json:"lost,omitempty"`
	// PoolMade: the thin pool was made, or is not for the declaration to make any more.
	PoolMade bool `json:"poolMade,omitempty"`
}

// unknownUUID is that of a group of which only its having been made is known.
const unknownUUID = "unknown"

// A TakenDisk is a disk that a declaration has taken.
type TakenDisk struct {
	Declaration string       `json:"declaration"`
	Group       volume.Group `json:"group"`
	// PV is the UUID that its physical volume gets: by it, what an earlier process has
	// begun is told from what a person has made.
	PV    string    `json:"pv"`
	Stage DiskStage `json:"stage"`
	// Asked are the entries of the annotation for which it was taken again.
	Asked []string `json:"asked,omitempty"`
}

// lastAsked returns the entry for which it was taken again last, if it was.
func (t TakenDisk) lastAsked() string {
	if len(t.Asked) == 0 {
		return ""
	}
	return t.Asked[len(t.Asked)-1]
}

// DiskStage is how far a disk has come.
type DiskStage string

// The stages of a disk, in their order.
const (
	// DiskTaken: it may have become a physical volume, and was in no group.
	DiskTaken DiskStage = "taken"
	// DiskLabelled: it has become a physical volume, and may have been in the group.
	DiskLabelled DiskStage = "labelled"
	// DiskMember: it has been in the group.
	DiskMember DiskStage = "member"
)

// WithReported returns the ledger with the groups that the node has reported as made and
// remembers nothing of. Reports are overwritten, so it is to be written before anything can
// fail.
func (l Ledger) WithReported(all []Declaration) Ledger {
	out := l.clone()
	for _, d := range all {
		if _, known := out.Groups[d.Name]; !known && d.Reported {
			// What is not there of its pool was removed by a person.
			out.Groups[d.Name] = MadeGroup{Group: d.Group, Lost: unknownUUID, PoolMade: true}
		}
	}
	return out
}

// clone copies the ledger, so that a plan changes nothing of what it was made from.
func (l Ledger) clone() Ledger {
	out := Ledger{Groups: make(map[string]MadeGroup, len(l.Groups)), Disks: make(map[string]TakenDisk, len(l.Disks)), Waits: make(map[string]time.Time, len(l.Waits))}
	for k, v := range l.Groups {
		out.Groups[k] = v
	}
	for k, v := range l.Disks {
		v.Asked = slices.Clone(v.Asked)
		out.Disks[k] = v
	}
	maps.Copy(out.Waits, l.Waits)
	return out
}
