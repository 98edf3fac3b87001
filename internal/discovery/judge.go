package discovery

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/diskid"
)

// A Volume describes a PersistentVolume of this node.
type Volume struct {
	Name, UID string
	Class     string
	Path      string
	Disk      string
	Aliases   string // as its annotation has them
	Claim     string // NAMESPACE/NAME of its claim; empty if it has none
	ClaimUID  string
	Released  bool // its claim is gone
	Delete    bool // its reclaim policy is Delete
	Deleting  bool
}

// A State is the outcome for one path; the API has the same words.
type State string

// The states.
const (
	Ready    State = "Ready"    // a PersistentVolume may be created for it
	Provided State = "Provided" // it has a PersistentVolume, which is not released
	Cleaning State = "Cleaning" // it is to be cleaned, or being cleaned
	Cleaned  State = "Cleaned"  // the PersistentVolume can be deleted
	Kept     State = "Kept"     // released, and left unchanged
	Refused  State = "Refused"
	Missing  State = "Missing"
)

// A Verdict is the decision about one path.
type Verdict struct {
	State   State
	Message string
	// MustBeEmpty: the path is Ready only if its emptiness is proved, and otherwise Refused.
	MustBeEmpty bool
	changed     string // why the ID may be another disk's now; empty if it is not
	// Grown: it is a partition in use that was extended. It is Provided only if Ledger.GrownOver returns nothing: its
	// cleaning would erase that data, too.
	Grown bool
	// Entry is what to record; it must be durable before the verdict is published.
	Entry Entry
}

// Judge decides what becomes of what was found at one path. found is nil if nothing is there, e is the
// ledger's entry for it, and v its PersistentVolume, if it has one. clean is false if the class keeps
// what is released, or no class discovers the path any more. A new offer gets its number from now.
//
// A disk is cleaned only if clean is true, e records that this node has offered the disk, and its
// PersistentVolume
//   - is released, with the reclaim policy Delete, and is not being deleted,
//   - was made of this very disk, and not of another one that was at its path before, nor of a partition that had its
//     number before, if e records where that was,
//   - was not made of a device whose ID does not say which data it has,
//   - is the last one that e records, unless there is none or the disk was cleaned after that one,
//   - is not recorded in e as bound to another claim than it names.
func Judge(found *Found, e Entry, v *Volume, clean bool, now time.Time) Verdict {
	if v == nil {
		return judgeFree(found, e, now)
	}
	noted := e
	noted.Offered = false
	if found == nil || found.Problem != "" || found.Disk == "" {
		return judgeMissing(found, noted, v)
	}
	if found.Disk != v.Disk {
		// The entry belongs to another disk, which has no PersistentVolume.
		return verdict(e, Refused, "another disk is at %s, and kubelet gives pods whatever is there: %s. It is %s, and PersistentVolume %s was created for %s; it is neither offered nor cleaned", v.Path, v.stopPods(), found.Disk, v.Name, v.Disk)
	}
	if was := formerDevices(found, noted, v); len(was) > 0 {
		return verdict(noted, Refused, "another disk is at %s, and kubelet gives pods whatever is there: %s. %s is on %s now, and was on %s; it is neither offered nor cleaned", v.Path, v.stopPods(), found.Disk, listOf(found.Aliases), listOf(was))
	}
	// A partition that was extended after its release may hold data that nobody has seen there.
	grown := !v.Released && noted.grownTo(found)
	if noted.movedTo(found) && !grown {
		return verdict(noted, Refused, "the partition table has changed (%d bytes at byte %d before, %d at byte %d now), so the partition may hold another claim's data, and nothing is cleaned: delete PersistentVolume %s once nobody needs the data", noted.Size, noted.Start, found.PartitionSize, found.Start, v.Name)
	}
	if out, outdated := judgeOutdated(noted, found.Path, v); outdated {
		return out
	}
	noted.Path = found.Path
	if !v.Released {
		out := judgeProvided(noted.at(found), v)
		out.Grown = grown
		return out
	}
	return judgeReleased(found, noted, v, clean)
}

// formerDevices returns the devices that the disk of v was on, as e or v has them, if found is another disk that has got its
// ID; none if it is the same.
func formerDevices(found *Found, e Entry, v *Volume) []string {
	for _, was := range []diskid.Names{{ID: found.Disk, Aliases: e.Aliases}, diskid.ParseNames(v.Disk, v.Aliases)} {
		if found.inPlaceOf(was) {
			return was.Aliases
		}
	}
	return nil
}

// changedTo returns why the ID of a disk without a PersistentVolume may be another disk's now; empty if it is not. grown: f
// is the entry's partition, which was extended.
func (e Entry) changedTo(f *Found, grown bool) string {
	switch {
	case e.movedTo(f) && !grown:
		return "the partition table has changed, so another partition may have had its data"
	case e.exchanged(f):
		return fmt.Sprintf("%s is on %s now, and was on %s, so another disk may have had its data", f.Disk, listOf(f.Aliases), listOf(e.Aliases))
	}
	return ""
}

// listOf returns the IDs of devices for a message.
func listOf(ids []string) string { return cmp.Or(strings.Join(ids, ", "), "a device without an ID") }

// stopPods returns what to do if another disk is at the path of the PersistentVolume.
func (v *Volume) stopPods() string {
	if v.Claim == "" {
		return "delete the PersistentVolume, or give its disk the path back"
	}
	return fmt.Sprintf("stop the pods of claim %s until its disk has the path again", v.Claim)
}

func verdict(noted Entry, s State, format string, args ...any) Verdict {
	return Verdict{State: s, Message: fmt.Sprintf(format, args...), Entry: noted}
}

// judgeMissing is Judge if the PersistentVolume's disk is not found.
func judgeMissing(found *Found, noted Entry, v *Volume) Verdict {
	if found == nil {
		return verdict(noted, Missing, "PersistentVolume %s was created for %s, and there is nothing at %s; bring the disk back, or delete the claim and the PersistentVolume", v.Name, v.Disk, v.Path)
	}
	return verdict(noted, Missing, "PersistentVolume %s was created for %s, which is not at %s: %s", v.Name, v.Disk, v.Path, found.Problem)
}

// judgeOutdated is Judge if the disk was cleaned after the PersistentVolume, or handed out to a
// later one; otherwise it returns false.
func judgeOutdated(noted Entry, path string, v *Volume) (Verdict, bool) {
	last := noted.Volume == "" || noted.Volume == v.UID || noted.CleanedAfter(noted.Volume)
	here := noted
	here.Path = path
	switch {
	case noted.CleanedAfter(v.UID) && last && v.Released && v.Delete && v.ClaimUID == noted.Claim:
		return verdict(here, Cleaned, "it is clean after PersistentVolume %s, which can be deleted", v.Name), true
	case noted.CleanedAfter(v.UID) && (!last || v.Released):
		return verdict(here, Refused, "it was cleaned after PersistentVolume %s, which exists again (was the API server restored from a backup?); delete the PersistentVolume", v.Name), true
	case !last:
		return verdict(noted, Refused, "it was offered again after PersistentVolume %s (%s) (was the API server restored from a backup?), so nothing is cleaned; delete that PersistentVolume once nothing uses it", v.Name, v.UID), true
	}
	return Verdict{}, false
}

// judgeProvided is Judge if the PersistentVolume is not released.
func judgeProvided(noted Entry, v *Volume) Verdict {
	noted = noted.HandedOut(v.UID)
	if v.ClaimUID != "" {
		noted.Claim = v.ClaimUID
	}
	return verdict(noted, Provided, "")
}

// judgeReleased is Judge if the PersistentVolume is released.
func judgeReleased(found *Found, noted Entry, v *Volume, clean bool) Verdict {
	another := noted.Volume == v.UID && noted.Claim != "" && v.ClaimUID != noted.Claim
	if noted.Volume != v.UID { // the claim that is recorded is another PersistentVolume's
		noted = noted.HandedOut(v.UID)
	}
	switch {
	case !v.Delete:
		return verdict(noted, Kept, "its claim %s is gone, and the reclaim policy is Retain: clean it by hand and delete PersistentVolume %s", v.Claim, v.Name)
	case v.Deleting:
		return verdict(noted, Refused, "PersistentVolume %s was deleted before its disk was cleaned; clean the disk by hand", v.Name)
	case !clean:
		return verdict(noted, Kept, "its claim %s is gone, and its class says Keep or is no longer in the VolumeDiscovery: clean it by hand and delete PersistentVolume %s", v.Claim, v.Name)
	case another:
		return verdict(noted, Refused, "PersistentVolume %s was meanwhile bound to a claim other than %s, so nothing is cleaned: clean the disk by hand and delete the PersistentVolume", v.Name, v.Claim)
	case noted.Offer == 0:
		return verdict(noted, Refused, "this node has no record that it offered the disk of PersistentVolume %s (is this another node, or were its records lost?), so nothing is cleaned: clean the disk by hand and delete the PersistentVolume", v.Name)
	case diskid.IsMappedPartition(found.Disk):
		return verdict(noted, Refused, "it is a partition that kpartx has mapped, and the partition table may have changed unnoticed, so nothing is cleaned: clean the partition by hand and delete PersistentVolume %s", v.Name)
	case diskid.IsLocal(found.Disk):
		return verdict(noted, Refused, "its ID, %s, is only a name, which another disk may have by now, so nothing is cleaned: clean the disk by hand and delete PersistentVolume %s", found.Disk, v.Name)
	}
	noted.Claim = v.ClaimUID
	return verdict(noted, Cleaning, "its claim %s is gone", v.Claim)
}

// judgeFree is Judge if there is no PersistentVolume.
func judgeFree(found *Found, e Entry, now time.Time) Verdict {
	out := Verdict{State: Refused, Entry: e}
	out.Entry.Offered = false
	switch {
	case found == nil:
		out.State, out.Message = Missing, "there is nothing at this path"
		return out
	case found.Problem != "":
		out.Message = found.Problem
		return out
	}
	out.State, out.Entry.Path, out.Entry.Offered = Ready, found.Path, true
	// While its offer stands, no PersistentVolume was seen that could have put data there, and Ledger.Uncleaned finds the
	// partitions into which it was extended. What it was cleaned after, or found empty of, counts for its former size only.
	grown := e.Offered && len(e.Cleaned) == 0 && e.grownTo(found)
	out.Entry, out.changed = out.Entry.at(found), e.changedTo(found, grown)
	if !e.Offered || out.changed != "" {
		// Higher than all earlier numbers, even if their record is lost.
		out.Entry.Offer = max(e.Offer+1, now.Unix())
		// Its PersistentVolume was deleted by hand, or it had another number, so the data of any claim may still be
		// on it.
		out.MustBeEmpty = out.changed != "" || e.Volume != "" && !e.CleanedAfter(e.Volume)
	}
	return out
}

// NotEmpty returns the verdict if the emptiness that v requires cannot be proved.
func (v Verdict) NotEmpty(was Entry, why error) Verdict {
	was.Offered = false
	what := "its PersistentVolume was deleted before the disk was cleaned"
	switch {
	case v.changed != "":
		what = v.changed
	case was.Volume == "" || was.CleanedAfter(was.Volume):
		what = "it had another PersistentVolume under another name, or a part of it had one, or the disk that it is on, and it was not cleaned since"
	}
	return Verdict{State: Refused, Entry: was, Message: fmt.Sprintf("%s, and %v", what, why)}
}
