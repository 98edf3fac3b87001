package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// closedMetadata is from which percentage on LVM's metadata area takes no new
// volume: what is left is for the growth and the removal of those that are there.
const closedMetadata = 95

// allocatable is what PersistentVolumes may take of a pool altogether, including those whose volumes are
// made already: what is free or about to be, what may be evicted, and what their volumes hold.
// allocatable minus the charges of all PersistentVolumes is what can still be promised; making a
// promised volume does not change it.
//
// A volume that holds more than its charge, for its extents are large, takes the
// difference from everybody; one that is to grow has its charge, and not more than
// it holds, counted. The volume of a PersistentVolume that is given up counts as nobody's
// until it may be evicted, so that its room is never counted twice while that
// PersistentVolume goes. One that is kept because the API server has gone back in time
// is counted like any other: its PersistentVolume stays.
func (p *planner) allocatable(in *pool) volume.Bytes {
	if in.Thin != nil {
		return p.thinAllocatable(in)
	}
	sum := in.Free + in.pending
	if p.result.Blocked == "" {
		// What a replica is charged comes off again with its PersistentVolume.
		sum += in.reclaimable() + in.leaving()
	}
	for k, charge := range p.charges(in) {
		// One that is being removed is in pending already.
		if v, made := p.index.volumes[k]; made && !p.view.isBeingRemoved(v) {
			sum += min(v.Device, charge)
		}
	}
	return sum
}

// charges are what PersistentVolumes that stay take of a pool, each volume once.
func (p *planner) charges(in *pool) map[Key]volume.Bytes {
	out := map[Key]volume.Bytes{}
	for i := range p.view.PersistentVolumes {
		c := &p.view.PersistentVolumes[i]
		goes := p.view.givenUp(c) && p.index.mayBeBack(p.view, c) == ""
		if c.Pool() != in.Name || !c.InGroup(in.GroupUUID()) || goes {
			continue
		}
		k := KeyOfPersistentVolume(c)
		out[k] = max(out[k], c.Charge().In(in.Extent))
	}
	return out
}

// closed says why no new volume may be promised in a pool, or nothing.
func (p *planner) closed(in *pool) string {
	if in.ailing != "" {
		return in.ailing
	}
	if in.Directories != nil {
		return in.Directories.Unfit // what is made in it needs none of LVM's metadata
	}
	if used := MetadataUsedPercent(in.Pool); used >= closedMetadata {
		return fmt.Sprintf("LVM's metadata area of volume group %s is %d%% full, and volumes can only be removed; make a group with a larger one (`flexlvm vg create`)", in.Name.Group(), used)
	}
	if in.Thin != nil {
		return p.thinClosed(in)
	}
	return ""
}
