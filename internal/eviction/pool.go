package eviction

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A poolPlan holds a plan's counts and decisions for one pool.
type poolPlan struct {
	inventory.Pool
	problem          string              // why nothing in it can be changed
	queue            []*inventory.Volume // volumes that may be evicted, in order; orphans at the end
	keptUnchecked    []*inventory.Volume // see View.KeptUnchecked; they join the queue once the offer has been determined
	orphans          []*inventory.Volume // volumes that may be evicted as orphans
	keptUnreferenced map[Kept]*amount    // the unreferenced volumes that may not be evicted
	orphaned         amount
	replicas         []candidate // replicas that may be evicted, in order
	keptReplicas     amount      // replicas that may not be evicted
	withheld         amount      // what could be offered and evicted for its room if the pool were not stalled
	stuckReplicas    amount      // replicas whose eviction was confirmed too long ago
	// unfinished are doomed volumes whose removal has failed.
	unfinished []*inventory.Volume
	removing   bool         // a removal in the pool is running or about to be retried
	pending    volume.Bytes // held by volumes being removed and replicas whose eviction is confirmed: about to be free
	freed      volume.Bytes // by evictions of this plan
	// freeSoonOn is the part of pending and freed on each device that LVM may allocate from; nil if unknown.
	freeSoonOn map[string]volume.Bytes
	// closedSoon is the part of freeSoon on all other devices.
	closedSoon volume.Bytes
	evicted    map[*inventory.Volume]bool // by this plan
	postponed  bool                       // this plan postpones evictions, because pods are starting
	// evictsForPromises: this plan evicts for promises.
	evictsForPromises bool
	demands           []demand
	// shared is what demands do not include in a thin pool; see addShared.
	shared     volume.Bytes
	thinGrowth []volume.Bytes // growth of each thin volume that must be free at one moment
	result     PoolResult
}

// An amount is a number of volumes and the bytes that they hold.
type amount struct {
	volumes int
	bytes   volume.Bytes
}

func (a *amount) add(v *inventory.Volume) {
	a.volumes++
	a.bytes += v.Allocated
}

// MaxUnfinished is how many committed removals in a pool may fail before no more are begun to free its room.
// The cause of these failures would likely block the next removal too, and its volume could not be brought
// back.
const MaxUnfinished = 2

func (p *poolPlan) stalled() bool { return len(p.unfinished) >= MaxUnfinished }

// evictsForRoom reports whether volumes may be evicted because the room of a pool is needed. Otherwise the room of
// those in its queue must not be promised.
func (p *planner) evictsForRoom(pool *poolPlan) bool {
	return p.result.Blocked == "" && !pool.stalled()
}

// addPending counts the room of a volume as about to be free.
func (p *poolPlan) addPending(v *inventory.Volume) {
	p.pending += v.Allocated
	p.closedSoon += v.Allocated - p.frees(v)
	addOn(p.freeSoonOn, v)
}

// addFreed counts the room of a volume that this plan evicts.
func (p *poolPlan) addFreed(v *inventory.Volume) {
	p.freed += v.Allocated
	p.closedSoon += v.Allocated - p.frees(v)
	p.evicted[v] = true
	addOn(p.freeSoonOn, v)
}

// freeSoon returns the room that is free or about to be.
func (p *poolPlan) freeSoon() volume.Bytes { return p.Free + p.pending + p.freed }

// allocatableSoon returns the part of freeSoon that LVM may allocate.
func (p *poolPlan) allocatableSoon() volume.Bytes { return p.freeSoon() - p.closedSoon }

// frees returns what LVM may allocate of the room of a volume once it is free.
func (p *poolPlan) frees(v *inventory.Volume) volume.Bytes { return freesOn(p.freeSoonOn, v) }

// roomSoon returns the same as allocatableSoon, also by device.
func (p *poolPlan) roomSoon() room {
	on := freeOn(p.Pool)
	for device, bytes := range p.freeSoonOn {
		on[device] += bytes
	}
	return room{p.allocatableSoon(), on}
}

// freeOn returns the free room on each device of a pool that LVM may allocate from; nil if unknown.
func freeOn(p inventory.Pool) map[string]volume.Bytes {
	if p.DeviceFree == nil {
		return nil
	}
	on := make(map[string]volume.Bytes, len(p.DeviceFree))
	for i, free := range p.DeviceFree {
		on[p.Devices[i]] = free
	}
	return on
}

// reclaimableOn returns for each device, in their order, the room that is about to be free and that evictable
// volumes hold.
func (p *poolPlan) reclaimableOn() (out []volume.Bytes) {
	on := maps.Clone(p.freeSoonOn)
	for _, v := range p.queue {
		addOn(on, v)
	}
	for _, c := range p.replicas {
		addOn(on, c.volume)
	}
	for i := range p.DeviceFree {
		out = append(out, on[p.Devices[i]])
	}
	return out
}

// used returns how much of the pool will still be in use, by volumes of flexlvm or others.
func (p *poolPlan) used() volume.Bytes { return max(0, p.Size-p.freeSoon()) }

// reclaimable returns the room that evicting the volumes in the queue makes.
func (p *poolPlan) reclaimable() (sum volume.Bytes) {
	for _, v := range p.queue {
		sum += p.frees(v)
	}
	return sum
}

// decide plans one pool.
func (p *planner) decide(pool *poolPlan) []Eviction {
	if pool.ContentUnknown() {
		pool.result.Closed = p.closed(pool)
		return nil // its content is unknown, so nothing is promised or evicted
	}
	p.setOffer(pool)
	pool.queue = append(pool.queue, pool.keptUnchecked...)
	slices.SortFunc(pool.queue, evictionOrder)
	p.setPressure(pool)
	if p.result.Blocked != "" {
		pool.excludeAll()
		p.setShortfall(pool)
		return nil
	}
	out := p.evictUnconditionally(pool)
	pool.queue = append(pool.queue, p.orphansFor(pool)...)
	// An eviction that frees no room that LVM may allocate is no help.
	pool.queue = slices.DeleteFunc(pool.queue, func(v *inventory.Volume) bool { return pool.frees(v) <= 0 })
	pool.replicas = slices.DeleteFunc(pool.replicas, func(c candidate) bool { return pool.frees(c.volume) <= 0 })
	if pool.stalled() {
		pool.withholdAll()
	}
	promised := p.evictForPromises(pool)
	out, pool.evictsForPromises = append(out, promised...), len(promised) > 0
	p.result.ReplicaEvictions = append(p.result.ReplicaEvictions, p.evictReplicas(pool)...)
	out = append(out, p.evictForThreshold(pool)...)
	out = append(out, p.evictForHeadroom(pool)...)
	if len(out) == 0 {
		out = p.evictForThinMetadata(pool)
	}
	p.setShortfall(pool)
	for _, e := range out {
		if e.Reason == ReasonOrphan {
			p.orphanBudget--
		}
	}
	return out
}

// withholdAll excludes all volumes of a stalled pool from eviction, and counts them, except orphans, whose room is never
// offered to claims.
func (p *poolPlan) withholdAll() {
	for _, v := range p.queue {
		if v.State == volume.Unreferenced {
			p.withheld.add(v)
		}
	}
	for _, c := range p.replicas {
		p.withheld.add(c.volume)
	}
	p.excludeAll()
	p.result.Reclaimable, p.result.Replicas = 0, 0
}

// setOffer sets how much room a pool can offer, before any evictions.
func (p *planner) setOffer(pool *poolPlan) {
	pool.result.Replicas, pool.result.Removing = pool.reclaimableReplicas(), pool.pending
	pool.result.RemovalsFail = pool.stalled()
	pool.result.Reclaimable = pool.reclaimable() + pool.result.Replicas
	pool.result.Allocatable, pool.result.Closed = p.allocatable(pool), p.closed(pool)
	for _, charge := range p.charges(pool) {
		pool.result.Charged += charge
	}
	pool.result.DeviceReclaimable = pool.reclaimableOn()
	pool.result.Unwritten = p.unwritten(pool)
}

// evictUnconditionally evicts the volumes that are evicted whether or not their room is needed.
func (p *planner) evictUnconditionally(pool *poolPlan) []Eviction {
	var immediate, old []Eviction
	pool.queue = slices.DeleteFunc(pool.queue, func(v *inventory.Volume) bool {
		switch {
		case v.Reclaim == volume.ReclaimImmediate:
			immediate = append(immediate, p.immediateEviction(v))
		case p.policy.MaxAge > 0 && p.view.Now.Sub(v.Released) > p.policy.MaxAge:
			old = append(old, Eviction{Volume: *v, Reason: ReasonMaxAge, Message: p.whyMaxAge(v)})
		default:
			return false
		}
		pool.addFreed(v)
		return true
	})
	return append(immediate, old...)
}

// immediateEviction returns the eviction of a volume whose class has it removed as soon as it is released.
func (p *planner) immediateEviction(v *inventory.Volume) Eviction {
	if c := p.index.solePV[KeyOf(v)]; c != nil && c.Replica.EvictionCommitted() {
		return Eviction{Volume: *v, Reason: ReasonReplica, Message: p.whyReplica(v, c), Replica: c.Replica}
	}
	return Eviction{Volume: *v, Reason: ReasonImmediate, Message: p.whyImmediate(v)}
}

// evictForPromises makes room for as many promised volumes as possible, the smallest first, and for none that
// cannot be served: data is not given up in vain. In a thin pool any room helps, because a grown volume
// allocates it block by block.
func (p *planner) evictForPromises(pool *poolPlan) []Eviction {
	now := pool.roomSoon()
	g := pool.goalWithin(pool.demands, now.with(pool.queue))
	var out []Eviction
	if victims := g.victims(now, pool.queue); len(victims) > 0 {
		out = p.evict(pool, victims, ReasonPromised, pool.whyPromised(g, now))
	}
	for _, growth := range pool.thinGrowth {
		if growth > pool.freeSoon() && growth <= pool.freeSoon()+pool.reclaimable() {
			out = append(out, p.evictUntil(pool, growth-pool.freeSoon(), ReasonPromised, pool.whyThinGrowth(growth))...)
		}
	}
	return out
}

// evictUntil evicts from the front of the queue until need is met.
func (p *planner) evictUntil(pool *poolPlan, need volume.Bytes, reason Reason, cause string) []Eviction {
	n := 0
	for ; need > 0 && n < len(pool.queue); n++ {
		need -= pool.queue[n].Allocated
	}
	return p.evict(pool, slices.Clone(pool.queue[:n]), reason, cause)
}

// evict evicts the given volumes of the queue.
func (p *planner) evict(pool *poolPlan, victims []*inventory.Volume, reason Reason, cause string) []Eviction {
	var out []Eviction
	for _, v := range victims {
		pool.queue = slices.DeleteFunc(pool.queue, func(other *inventory.Volume) bool { return other == v })
		pool.addFreed(v)
		e := Eviction{Volume: *v, Reason: reason}
		if v.State == volume.Unreferenced {
			e.Message = fmt.Sprintf("%s; evicting it frees %s: %s", cause, v.Allocated, p.describeIdle(v))
		} else {
			e.Reason = ReasonOrphan
			e.Message = fmt.Sprintf("%s, and nothing unreferenced is left; evicting this orphan frees %s: %s", cause, v.Allocated, p.describeOrphan(v))
		}
		out = append(out, e)
	}
	return out
}
