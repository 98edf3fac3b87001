package volumegroup

import (
	"maps"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Ledger is the node's record of the disks that it has taken. It is written before a disk is
// touched, and nothing but WaitingSince is ever removed from it.
type Ledger struct {
	// Groups holds groups by the name of the declaration that created them.
	Groups map[string]GroupRecord `json:"groups,omitempty"`
	// Disks holds disks by their IDs.
	Disks map[string]DiskRecord `json:"disks,omitempty"`
	// WaitingSince holds, by the names of declarations, since when their groups, which do not exist yet,
	// wait for a disk that cannot be taken at the moment.
	WaitingSince map[string]time.Time `json:"waits,omitempty"`
}

// A GroupRecord is a volume group that a declaration created here.
type GroupRecord struct {
	Group volume.Group `json:"group"`
	UUID  string       `json:"uuid"`
	// Lost is the UUID of an earlier group that is gone, while UUID is empty: only disks that are
	// asked for again create another in its place.
	Lost string `json:"lost,omitempty"`
	// PoolMade: the thin pool was created, or the declaration must no longer create it.
	PoolMade bool `json:"poolMade,omitempty"`
}

// unknownUUID stands for a group of which nothing but its creation is known.
const unknownUUID = "unknown"

// A DiskRecord is a disk that a declaration has taken.
type DiskRecord struct {
	Declaration string       `json:"declaration"`
	Group       volume.Group `json:"group"`
	// PVUUID is the UUID that its physical volume gets. It distinguishes what an earlier process has
	// begun from what a person has created.
	PVUUID string    `json:"pv"`
	Stage  DiskStage `json:"stage"`
	// ReuseEntries are the entries of the annotation for which the disk was taken again.
	ReuseEntries []string `json:"asked,omitempty"`
}

// lastReuseEntry returns the entry for which the disk was last taken again; empty if it was not.
func (t DiskRecord) lastReuseEntry() string {
	if len(t.ReuseEntries) == 0 {
		return ""
	}
	return t.ReuseEntries[len(t.ReuseEntries)-1]
}

// DiskStage is how far a disk has come on its way into the group.
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

// WithReported returns the ledger with the groups that the node has reported as created and has no
// record of. Reports are overwritten, so the ledger must be written before anything can fail.
func (l Ledger) WithReported(all []Declaration) Ledger {
	out := l.clone()
	for _, d := range all {
		if _, known := out.Groups[d.Name]; !known && d.Reported {
			// If its pool is missing, a person has removed the pool.
			out.Groups[d.Name] = GroupRecord{Group: d.Group, Lost: unknownUUID, PoolMade: true}
		}
	}
	return out
}

// clone copies the ledger, so that a plan does not change the ledger it is based on.
func (l Ledger) clone() Ledger {
	out := Ledger{Groups: make(map[string]GroupRecord, len(l.Groups)), Disks: make(map[string]DiskRecord, len(l.Disks)), WaitingSince: make(map[string]time.Time, len(l.WaitingSince))}
	for k, v := range l.Groups {
		out.Groups[k] = v
	}
	for k, v := range l.Disks {
		v.ReuseEntries = slices.Clone(v.ReuseEntries)
		out.Disks[k] = v
	}
	maps.Copy(out.WaitingSince, l.WaitingSince)
	return out
}
