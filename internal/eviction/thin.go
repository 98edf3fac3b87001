package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// One part in thinSlack of a thin pool is promised to nobody: LVM reports the use of a pool in hundredths of a
// per cent of the pool, and that of a volume in hundredths of a per cent of the volume.
const thinSlack = 5000

// thinAllocatable is allocatable for a thin pool, where a volume holds what was written to it, and a
// PersistentVolume is charged for what may be written to its volume, divided by its class's ratio.
//
// A volume without a PersistentVolume may be brought back and written to, so all that it could hold is
// subtracted. For an unreferenced or doomed volume, only what it holds now is subtracted, or nothing if it may
// be evicted or its room is about to be free. If a volume holds more than its PersistentVolume's charge, as a
// ratio allows, the difference is subtracted too. Of volumes that are not flexlvm's, only what they hold is
// known: at least what is in use beyond what flexlvm's volumes hold, which is too little if those share blocks.
// A difference within the slack may be LVM's rounding, and changes with every write.
func (p *planner) thinAllocatable(pool *poolPlan) volume.Bytes {
	evictable, evictableReplicas := map[*inventory.Volume]bool{}, map[*inventory.Volume]bool{}
	if p.evictsForRoom(pool) {
		for _, v := range pool.queue {
			evictable[v] = true
		}
		for _, c := range pool.replicas {
			evictableReplicas[c.volume] = true
		}
	}
	charges, held := p.charges(pool), volume.Bytes(0)
	slack := pool.Size / thinSlack
	left := pool.Size - slack
	for i := range p.view.Volumes {
		v := &p.view.Volumes[i]
		if !pool.Holds(v) {
			continue
		}
		held += v.Allocated
		charge, named := charges[KeyOf(v)]
		switch {
		case named && evictableReplicas[v]:
			left += charge // subtracted again with those of all PersistentVolumes
		case named:
			left -= max(0, v.Allocated-charge)
		case evictable[v], p.view.aboutToBeFree(v):
		case v.State == volume.Unreferenced, v.State == volume.Doomed:
			left -= v.Allocated
		default:
			left -= max(v.Allocated, v.AllocatedWhenFull)
		}
	}
	used := pool.Size - pool.Free
	others := min(pool.Thin.Others+pool.Thin.Unreported, used)
	return max(0, left-max(0, others, used-held-slack))
}

// unwritten returns what the volumes of a thin pool that pods may use, of any cluster, may still allocate: their full
// size minus what they hold. In an overcommitted pool that is more than the pool can give, and the charges of the
// PersistentVolumes do not show it. Snapshots are never written. What an inactive volume holds is unknown, so it counts
// as fully written, as in the inventory.
func (p *planner) unwritten(pool *poolPlan) (sum volume.Bytes) {
	if pool.Thin == nil {
		return 0
	}
	for i := range p.view.Volumes {
		v := &p.view.Volumes[i]
		writable := (v.State == volume.Ready || v.State == volume.Creating) && v.Kind != volume.Snapshot
		if pool.Holds(v) && writable && v.Active {
			sum += max(0, v.AllocatedWhenFull-v.Allocated)
		}
	}
	return sum
}

// ThinUsedPercent returns how full a thin pool's data area is.
func ThinUsedPercent(p inventory.Pool) int { return volume.Percent(p.Size-p.Free, p.Size) }

// ThinMetadataUsedPercent returns how full a thin pool's metadata area is.
func ThinMetadataUsedPercent(p inventory.Pool) int {
	return volume.Percent(p.Thin.MetadataUsed, p.Thin.Metadata)
}

// thinClosed returns why no new volume may be promised in a thin pool; empty if one may. What evictable volumes
// hold does not count as used, because they are evicted when their room is needed, unless evictions are blocked or
// the pool is stalled.
func (p *planner) thinClosed(pool *poolPlan) string {
	if pool.Thin.Unfit != "" {
		return fmt.Sprintf("thin pool %s: %s", pool.Name, pool.Thin.Unfit)
	}
	if !pool.Thin.Known {
		return fmt.Sprintf("LVM does not report how full thin pool %s is; see `lvs -a %s`", pool.Name, pool.Name.Group())
	}
	kept, evictable := pool.Size-pool.Free-pool.pending, pool.reclaimable()+pool.reclaimableReplicas()
	if p.evictsForRoom(pool) {
		kept -= evictable
	}
	used := volume.Percent(max(0, kept), pool.Size)
	switch {
	case used < p.policy.ThinDataPercent:
		return p.thinMetadataFull(pool)
	case pool.stalled() && evictable > 0:
		return fmt.Sprintf("thin pool %s is %d%% full, and %s is %d; %s, so what could be evicted counts as used until that is corrected; correct it, extend the pool (`lvextend`), or delete claims",
			pool.Name, used, flagThinData, p.policy.ThinDataPercent, pool.describeUnfinished())
	default:
		return fmt.Sprintf("thin pool %s is %d%% full with what cannot be evicted, and %s is %d; extend it (`lvextend`), or delete claims", pool.Name, used, flagThinData, p.policy.ThinDataPercent)
	}
}

// thinMetadataFull returns a message if a thin pool's metadata area is too full; empty if it is not. A pool whose
// metadata area is full cannot be written to until a person has repaired it.
func (p *planner) thinMetadataFull(pool *poolPlan) string {
	if pool.Thin == nil || pool.Thin.Unfit != "" {
		return ""
	}
	if used := ThinMetadataUsedPercent(pool.Pool); used >= p.policy.ThinMetadataPercent {
		return fmt.Sprintf("the metadata of thin pool %s is %d%% full, and %s is %d; extend it (`lvextend --poolmetadatasize`), or delete claims", pool.Name, used, flagThinMetadata, p.policy.ThinMetadataPercent)
	}
	return ""
}

// evictForThinMetadata evicts one volume of a pool whose metadata area is too full. How much of it that frees
// is known only afterwards.
func (p *planner) evictForThinMetadata(pool *poolPlan) []Eviction {
	full := p.thinMetadataFull(pool)
	if full == "" || pool.removing {
		return nil
	}
	return p.evictUntil(pool, 1, ReasonHighThreshold, full)
}
