package volumegroup

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A PhysicalVolume is a physical volume that LVM shows, in a group or in none.
type PhysicalVolume struct {
	UUID string
	Path string
	// Disk is the ID of the whole disk that holds it; empty for a partition, or if the disk is
	// missing.
	Disk      string
	Group     volume.Group // empty: in none
	GroupUUID string
	Tags      []string // of the group
	Missing   bool
}

// A View is what a plan is based on, at one moment.
type View struct {
	Declarations []Declaration // that select this node
	Disks        []Disk
	PVs          []PhysicalVolume
	Ledger       Ledger
}

// A Decision is what to do for one declaration.
type Decision struct {
	Declaration Declaration
	// Problem is why nothing at all is done; empty if something may be.
	Problem string
	// GroupUUID is the UUID of the group that the declaration created; empty if there is none.
	GroupUUID string
	Members   []Disk // that the group consists of
	// Candidates are disks to become members, if they are blank or were begun before.
	Candidates []Candidate
	Refused    []Refusal
	CreatePool bool // the group exists, and its thin pool was not created yet
	// WaitReason is why the group, which does not exist yet, is not created this time; empty if it may
	// be.
	WaitReason string
	// Lost is the UUID of a group of this name that was created here and is gone; empty if there
	// was none, or it exists.
	Lost string
}

// RefuseRecreation prevents a group that is gone from being created again unless a disk to be taken was
// asked for. It must be called again whenever a disk is removed from Candidates.
func (d *Decision) RefuseRecreation() {
	if d.Problem != "" || d.Lost == "" || slices.ContainsFunc(d.Candidates, func(c Candidate) bool { return c.ReuseEntry != "" }) {
		return
	}
	d.Problem = fmt.Sprintf("volume group %s (UUID %s) was created here and is gone: its disks are missing, or someone has removed it; it is not created again unless the annotation %s of the VolumeGroup names a blank disk for it", d.Declaration.Group, d.Lost, annotation)
	d.Candidates = nil
}

// Matched reports whether any disk of the node matches the declaration.
func (d Decision) Matched() bool { return len(d.Members)+len(d.Candidates)+len(d.Refused) > 0 }

// NeedsLoop reports whether the declaration's loop device is to be created.
func (d Decision) NeedsLoop() bool {
	return d.Declaration.Loop != nil && d.Problem == "" && d.GroupUUID == "" && !d.Matched()
}

// A Candidate is a disk to be taken.
type Candidate struct {
	Disk
	// PVUUID is the UUID of the physical volume that an earlier process has chosen; empty: none.
	PVUUID string
	// Begun: the disk already is that physical volume, in no group, and not blank.
	Begun bool
	// ReuseEntry is the entry of the annotation for which the disk is taken again, or was by an earlier
	// process that has begun with it.
	ReuseEntry string
}

// A Refusal is a disk that is not taken, and why.
type Refusal struct {
	Disk
	Reason string
	// Transient: the reason may be temporary, such as a process that has the disk open.
	Transient bool
}

// Plan decides for each declaration. The returned ledger also records what Plan has recognised as
// flexlvm's, and must be written before anything is done. Whatever is not known for certain is
// refused.
func Plan(v View) ([]Decision, Ledger) {
	p := planner{View: v, ledger: v.Ledger.clone(), ids: map[string]int{}}
	for _, d := range v.Disks {
		p.ids[d.ID]++
	}
	decisions := make([]Decision, 0, len(v.Declarations))
	for _, d := range v.Declarations {
		decisions = append(decisions, p.decide(d))
	}
	p.settleConflicts(decisions)
	for i := range decisions {
		p.checkLost(&decisions[i])
	}
	return decisions, p.ledger
}

type planner struct {
	View
	ledger Ledger
	ids    map[string]int // how many disks report this ID
}

func (p *planner) decide(d Declaration) Decision {
	out := Decision{Declaration: d}
	if err := d.Validate(); err != nil {
		out.Problem = err.Error()
		return out
	}
	out.GroupUUID, out.Problem = p.group(d)
	if out.Problem != "" {
		return out
	}
	if out.GroupUUID != "" {
		p.recordGroup(d, out.GroupUUID)
		out.CreatePool = d.ThinPool != "" && !p.ledger.Groups[d.Name].PoolMade
	}
	for _, disk := range p.Disks {
		if pv := p.physicalVolumeOn(disk); out.GroupUUID != "" && pv != nil && pv.GroupUUID == out.GroupUUID {
			out.Members = append(out.Members, disk)
			continue
		}
		if !d.Matches(disk) {
			continue
		}
		c, reason := p.candidate(d, disk)
		if reason == "" && out.GroupUUID != "" {
			reason = p.extendReason(d, c, out.GroupUUID)
		}
		if reason != "" {
			out.Refused = append(out.Refused, Refusal{Disk: disk, Reason: reason})
			continue
		}
		out.Candidates = append(out.Candidates, c)
	}
	return out
}

// group returns the group that the declaration created, or why there can be none.
func (p *planner) group(d Declaration) (uuid, problem string) {
	tags := map[string][]string{} // by UUID of the groups of this name
	for _, pv := range p.PVs {
		if pv.Group == d.Group && pv.Group != "" {
			tags[pv.GroupUUID] = pv.Tags
		}
	}
	if len(tags) > 1 {
		return "", fmt.Sprintf("this node has %d volume groups named %s; give all but one another name with `vgrename UUID NAME`", len(tags), d.Group)
	}
	if pv := p.renamedGroupPV(d); pv != nil {
		return "", fmt.Sprintf("volume group %s (UUID %s) was created by this VolumeGroup and has been renamed; give it its name back with `vgrename %s %s`", pv.Group, pv.GroupUUID, pv.GroupUUID, d.Group)
	}
	record := p.ledger.Groups[d.Name]
	for uuid, has := range tags {
		switch by := DeclaredBy(has); {
		case by == "":
			return "", fmt.Sprintf("volume group %s exists, but was not created by a VolumeGroup; it can be used as it is and is not changed", d.Group)
		case by != d.Name:
			return "", fmt.Sprintf("volume group %s exists, and VolumeGroup %s has created it; choose another spec.name", d.Group, by)
		case record.UUID != "" && record.UUID != uuid:
			return "", fmt.Sprintf("volume group %s has UUID %s, but the one that was created here had %s; it is not changed", d.Group, uuid, record.UUID)
		}
		return uuid, ""
	}
	for _, other := range p.Declarations {
		if other.Name != d.Name && other.Group == d.Group {
			return "", fmt.Sprintf("VolumeGroup %s declares volume group %s on this node, too; neither is created", other.Name, d.Group)
		}
	}
	return "", ""
}

// renamedGroupPV returns a physical volume of a group that has the tag of the declaration and another
// name; nil if there is none.
func (p *planner) renamedGroupPV(d Declaration) *PhysicalVolume {
	i := slices.IndexFunc(p.PVs, func(pv PhysicalVolume) bool {
		return pv.Group != "" && pv.Group != d.Group && DeclaredBy(pv.Tags) == d.Name
	})
	if i < 0 {
		return nil
	}
	return &p.PVs[i]
}

// recordGroup records the existing group, and the disks that it consists of, in the ledger.
func (p *planner) recordGroup(d Declaration, uuid string) {
	record, recorded := p.ledger.Groups[d.Name]
	if !recorded {
		// Created by a node that has no record of it: if its pool is missing, a person has removed
		// the pool.
		record.PoolMade = true
	}
	record.Group, record.UUID, record.Lost = d.Group, uuid, ""
	p.ledger.Groups[d.Name] = record
	for _, pv := range p.PVs {
		if pv.GroupUUID != uuid || pv.Disk == "" {
			continue
		}
		was := p.ledger.Disks[pv.Disk]
		p.ledger.Disks[pv.Disk] = DiskRecord{Declaration: d.Name, Group: d.Group, PVUUID: pv.UUID, Stage: DiskMember, ReuseEntries: was.ReuseEntries}
	}
}

// physicalVolumeOn returns the physical volume on a disk, or nil.
func (p *planner) physicalVolumeOn(d Disk) *PhysicalVolume {
	i := slices.IndexFunc(p.PVs, func(pv PhysicalVolume) bool { return pv.Disk == d.ID && d.ID != "" || pv.Path == d.Path })
	if i < 0 {
		return nil
	}
	return &p.PVs[i]
}

// candidate returns the disk as a candidate, or why it may not be taken. Whether it is blank is
// checked later.
func (p *planner) candidate(d Declaration, disk Disk) (c Candidate, reason string) {
	c.Disk = disk
	if reason := p.unsuitableReason(disk); reason != "" {
		return c, reason
	}
	taken, known := p.ledger.Disks[disk.ID]
	begun := known && taken.Declaration == d.Name && taken.Group == d.Group
	entry, reuse := d.reuseEntry(disk.ID, taken.ReuseEntries)
	if reason := d.Discovered.refusalReason(disk, reuse || begun); reason != "" {
		return c, reason
	}
	if pv := p.physicalVolumeOn(disk); pv != nil {
		if begun && !reuse && taken.Stage != DiskMember && pv.Group == "" && pv.UUID == taken.PVUUID {
			c.PVUUID, c.Begun, c.ReuseEntry = taken.PVUUID, true, taken.lastReuseEntry()
			return c, ""
		}
		return c, physicalVolumeReason(*pv)
	}
	switch {
	case reuse || !known:
		c.ReuseEntry = entry
		return c, ""
	case begun && taken.Stage == DiskTaken:
		c.PVUUID, c.ReuseEntry = taken.PVUUID, taken.lastReuseEntry()
		return c, ""
	}
	return c, fmt.Sprintf("it was used before, for volume group %s by VolumeGroup %s, and was cleared since; a disk is not used twice unless the annotation %s of the VolumeGroup names it (%s)", taken.Group, taken.Declaration, annotation, disk.ID)
}

// unsuitableReason returns why a disk is never taken, whatever is on it; empty if it may be.
func (p *planner) unsuitableReason(d Disk) string {
	switch {
	case d.ID == "":
		return "it has neither a WWN nor a serial number to distinguish it from other disks; use `flexlvm vg create` on the node"
	case p.ids[d.ID] > 1:
		return fmt.Sprintf("%d devices report the same ID, %s; they are paths to one disk (multipath), which is not used, or have the same serial number", p.ids[d.ID], d.ID)
	case d.Removable:
		return "it is removable, like every USB disk; use `flexlvm vg create` on the node"
	case d.Remote:
		return "it is attached over a network, where other nodes may reach it, too; use `flexlvm vg create` on the node"
	}
	return ""
}

func physicalVolumeReason(pv PhysicalVolume) string {
	if pv.Group != "" {
		return fmt.Sprintf("it belongs to volume group %s", pv.Group)
	}
	return fmt.Sprintf("it holds an LVM physical volume, %s; if nobody needs it, remove it with `pvremove %s`, and see docs/volume-groups.md on using a disk again", pv.UUID, pv.Path)
}

// annotation is flexlvmv1.AnnotationTakeAgain, which this package does not import; a test compares them.
const annotation = "flexlvm.io/take-again"

// extendReason returns why a disk is not added to an existing group; empty if it may be. A disk on
// which a physical volume was created for the group joins it even without spec.extend: what was
// begun is finished. A disk that was only recorded is blank or refused, and may have been used
// otherwise since.
func (p *planner) extendReason(d Declaration, c Candidate, uuid string) string {
	if !d.Extend && !c.Begun {
		return fmt.Sprintf("volume group %s was created without it; set spec.extend to add it", d.Group)
	}
	if slices.ContainsFunc(p.PVs, func(pv PhysicalVolume) bool { return pv.GroupUUID == uuid && pv.Missing }) {
		return fmt.Sprintf("volume group %s lacks devices, so it is not extended", d.Group)
	}
	return ""
}

// settleConflicts refuses the disks that another declaration matches, too, whether or not that
// declaration would take them now. What was begun is finished.
func (p *planner) settleConflicts(decisions []Decision) {
	for i := range decisions {
		d := &decisions[i]
		d.Candidates = slices.DeleteFunc(d.Candidates, func(c Candidate) bool {
			at := slices.IndexFunc(p.Declarations, func(other Declaration) bool {
				return other.Name != d.Declaration.Name && other.Matches(c.Disk)
			})
			if c.PVUUID != "" || at < 0 {
				return false
			}
			d.Refused = append(d.Refused, Refusal{Disk: c.Disk, Reason: fmt.Sprintf("VolumeGroup %s matches it, too; neither uses it", p.Declarations[at].Name)})
			return true
		})
	}
}

// checkLost checks whether a group of this name was created here and is gone.
func (p *planner) checkLost(d *Decision) {
	if d.Problem != "" || d.GroupUUID != "" {
		return
	}
	d.Lost = p.lost(d.Declaration)
	d.RefuseRecreation()
}

// lost returns the UUID of the group that a declaration, or another one for a group of the same
// name, created here; empty if there was none.
func (p *planner) lost(d Declaration) string {
	record := p.ledger.Groups[d.Name]
	if uuid := cmp.Or(record.UUID, record.Lost); uuid != "" {
		return uuid
	}
	for _, name := range slices.Sorted(maps.Keys(p.ledger.Groups)) {
		other := p.ledger.Groups[name]
		if uuid := cmp.Or(other.UUID, other.Lost); other.Group == d.Group && uuid != "" {
			return uuid
		}
	}
	return ""
}
