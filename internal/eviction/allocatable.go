package eviction

import (
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// allocatable returns what PersistentVolumes may take of a pool in total, including those whose volumes exist:
// what is free or about to be, what may be evicted, and what their volumes hold. allocatable minus the charges
// of all PersistentVolumes is what can still be promised; creating a promised volume does not change it.
//
// Of each volume, the smaller of what it holds and its charge counts: it holds more than its charge if extents
// are large, and less until it has grown. The volume of a PersistentVolume that is given up does not count
// until it may be evicted, so that its room is never counted twice while that PersistentVolume is deleted. A
// volume that is kept because the API server has gone back in time counts like any other: its PersistentVolume
// stays.
func (p *planner) allocatable(pool *poolPlan) volume.Bytes {
	if pool.Thin != nil {
		return p.thinAllocatable(pool)
	}
	sum := pool.allocatableSoon()
	if p.evictsForRoom(pool) {
		// The charges of these replicas, added below, are subtracted again with those of all PersistentVolumes.
		sum += pool.reclaimable() + pool.reclaimableReplicas()
	}
	for k, charge := range p.charges(pool) {
		// The room of a volume that is being removed is in pending already.
		if v, made := p.index.volumes[k]; made && !p.view.isBeingRemoved(v) {
			sum += min(v.Allocated, charge)
		}
	}
	return sum
}

// freeToAllocate returns the free room of a pool without that of devices that LVM may not allocate from
// (`pvchange --allocatable n`), which LVM counts as free, too.
func freeToAllocate(p inventory.Pool) volume.Bytes {
	if p.DeviceFree == nil {
		return p.Free
	}
	var sum volume.Bytes
	for _, free := range p.DeviceFree {
		sum += free
	}
	return min(p.Free, sum)
}

// charges returns the charges of the PersistentVolumes of a pool that stay, once per volume.
func (p *planner) charges(pool *poolPlan) map[Key]volume.Bytes {
	out := map[Key]volume.Bytes{}
	for i := range p.view.PersistentVolumes {
		c := &p.view.PersistentVolumes[i]
		goes := p.view.givenUp(c) && p.index.keptAfterRestore(p.view, c) == ""
		if c.Pool() != pool.Name || !c.InGroup(pool.GroupUUID()) || goes {
			continue
		}
		k := KeyOfPersistentVolume(c)
		out[k] = max(out[k], c.Charge().In(pool.Extent))
	}
	return out
}

// closed returns why no new volume may be promised in a pool; empty if one may.
func (p *planner) closed(pool *poolPlan) string {
	if pool.problem != "" {
		return pool.problem
	}
	if pool.Directories != nil {
		return pool.Directories.Unfit // directories need none of LVM's metadata
	}
	if full := metadataFull(pool.Pool); full != "" {
		return full + "; " + p.metadataAdvice(pool)
	}
	if pool.Thin != nil {
		return p.thinClosed(pool)
	}
	return ""
}
