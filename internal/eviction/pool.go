package eviction

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A pool holds a plan's counts and decisions for one pool.
type pool struct {
	inventory.Pool
	ailing   string              // why nothing in it can be changed
	queue    []*inventory.Volume // volumes that may be evicted, in order; orphans at the end
	unasked  []*inventory.Volume // see View.Unasked; they join the queue once the offer has been determined
	orphans  []*inventory.Volume // volumes that may be evicted as orphans
	held     [standings]amount   // the unreferenced volumes
	orphaned amount
	replicas []candidate // replicas that may be evicted, in order
	kept     amount      // replicas that may not be evicted
	stuck    amount      // replicas whose eviction was confirmed too long ago
	// unfinished are doomed volumes whose removal has failed.
	unfinished []*inventory.Volume
	removing   bool         // a removal in the pool is running or about to be retried
	pending    volume.Bytes // held by volumes being removed and replicas whose eviction is confirmed: about to be free
	freed      volume.Bytes // by evictions of this plan
	// comingOn is the part of pending and freed on each device.
	comingOn map[string]volume.Bytes
	evicted  map[*inventory.Volume]bool // by this plan
	putOff   bool                       // this plan postpones evictions, because pods are starting
	// promising: this plan evicts for promises.
	promising bool
	demands   []demand
	// shared is what demands do not include in a thin pool; see addShared.
	shared volume.Bytes
	atOnce []volume.Bytes // growth of each thin volume that must be free at one moment
	result PoolResult
}

// An amount is a number of volumes and the bytes that they hold.
type amount struct {
	volumes int
	bytes   volume.Bytes
}

func (a *amount) add(v *inventory.Volume) {
	a.volumes++
	a.bytes += v.Device
}

// fewUnfinished is how many committed removals in a pool may fail before no more are begun to free its room.
// The cause of these failures would likely block the next removal too, and its volume could not be brought
// back.
const fewUnfinished = 2

func (p *pool) stalled() bool { return len(p.unfinished) >= fewUnfinished }

// awaits counts the room of a volume as about to be free.
func (p *pool) awaits(v *inventory.Volume) {
	p.pending += v.Device
	addOn(p.comingOn, v)
}

// frees counts the room of a volume that this plan evicts.
func (p *pool) frees(v *inventory.Volume) {
	p.freed += v.Device
	p.evicted[v] = true
	addOn(p.comingOn, v)
}

// coming returns the room that is free or about to be.
func (p *pool) coming() volume.Bytes { return p.Free + p.pending + p.freed }

// comingRoom returns the same by device.
func (p *pool) comingRoom() room {
	on := freeOn(p.Pool)
	for device, bytes := range p.comingOn {
		on[device] += bytes
	}
	return room{p.coming(), on}
}

// freeOn returns the free room on each device of a pool; nil if unknown.
func freeOn(p inventory.Pool) map[string]volume.Bytes {
	if len(p.DeviceFree) == 0 {
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
func (p *pool) reclaimableOn() (out []volume.Bytes) {
	on := maps.Clone(p.comingOn)
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
func (p *pool) used() volume.Bytes { return max(0, p.Size-p.coming()) }

// reclaimable returns what the volumes in the queue hold.
func (p *pool) reclaimable() (sum volume.Bytes) {
	for _, v := range p.queue {
		sum += v.Device
	}
	return sum
}

// decide plans one pool.
func (p *planner) decide(in *pool) []Eviction {
	if in.ContentUnknown() {
		in.result.Closed = p.closed(in)
		return nil // its content is unknown, so nothing is promised or evicted
	}
	p.noteOffer(in)
	in.queue = append(in.queue, in.unasked...)
	slices.SortFunc(in.queue, evictionOrder)
	p.notePressure(in)
	if p.result.Blocked != "" {
		in.withhold()
		p.reportShortfall(in)
		return nil
	}
	out := p.evictAnyway(in)
	in.queue = append(in.queue, p.orphansFor(in)...)
	if in.stalled() {
		in.withhold()
		in.result.Reclaimable, in.result.Replicas = 0, 0
	}
	// An eviction that frees no room is no help.
	in.queue = slices.DeleteFunc(in.queue, func(v *inventory.Volume) bool { return v.Device <= 0 })
	promised := p.evictForPromises(in)
	out, in.promising = append(out, promised...), len(promised) > 0
	p.result.ReplicaEvictions = append(p.result.ReplicaEvictions, p.evictReplicas(in)...)
	out = append(out, p.evictForThreshold(in)...)
	out = append(out, p.evictForHeadroom(in)...)
	if len(out) == 0 {
		out = p.evictForThinMetadata(in)
	}
	p.reportShortfall(in)
	for _, e := range out {
		if e.Reason == ReasonOrphan {
			p.orphanBudget--
		}
	}
	return out
}

// noteOffer sets how much room a pool can offer, before any evictions.
func (p *planner) noteOffer(in *pool) {
	in.result.Replicas, in.result.Removing = in.leaving(), in.pending
	in.result.Reclaimable = in.reclaimable() + in.result.Replicas
	in.result.Allocatable, in.result.Closed = p.allocatable(in), p.closed(in)
	for _, charge := range p.charges(in) {
		in.result.Charged += charge
	}
	in.result.DeviceReclaimable = in.reclaimableOn()
	in.result.Unwritten = p.unwritten(in)
}

// evictAnyway evicts volumes that go whether or not their room is needed.
func (p *planner) evictAnyway(in *pool) []Eviction {
	var immediate, old []Eviction
	in.queue = slices.DeleteFunc(in.queue, func(v *inventory.Volume) bool {
		switch {
		case v.Reclaim == volume.ReclaimImmediate:
			immediate = append(immediate, p.immediately(v))
		case p.policy.MaxAge > 0 && p.view.Now.Sub(v.Released) > p.policy.MaxAge:
			old = append(old, Eviction{Volume: *v, Reason: ReasonMaxAge, Message: p.whyMaxAge(v)})
		default:
			return false
		}
		in.frees(v)
		return true
	})
	return append(immediate, old...)
}

// immediately returns the eviction of a volume whose class has it removed as soon as it is released.
func (p *planner) immediately(v *inventory.Volume) Eviction {
	if c := p.index.sole[KeyOf(v)]; c != nil && c.Replica.EvictionCommitted() {
		return Eviction{Volume: *v, Reason: ReasonReplica, Message: p.whyReplica(v, c), Replica: c.Replica}
	}
	return Eviction{Volume: *v, Reason: ReasonImmediate, Message: p.whyImmediate(v)}
}

// evictForPromises makes room for as many promised volumes as possible, the smallest first, and for none that
// cannot be served: data is not given up in vain. In a thin pool any room helps, because a grown volume
// allocates it block by block.
func (p *planner) evictForPromises(in *pool) []Eviction {
	now := in.comingRoom()
	g := in.goalWithin(in.demands, now.with(in.queue))
	var out []Eviction
	if victims := g.victims(now, in.queue); len(victims) > 0 {
		out = p.evict(in, victims, ReasonPromised, in.whyPromised(g, now))
	}
	for _, once := range in.atOnce {
		if once > in.coming() && once <= in.coming()+in.reclaimable() {
			out = append(out, p.take(in, once-in.coming(), ReasonPromised, in.whyAtOnce(once))...)
		}
	}
	return out
}

// take evicts from the front of the queue until need is met.
func (p *planner) take(in *pool, need volume.Bytes, reason Reason, cause string) []Eviction {
	n := 0
	for ; need > 0 && n < len(in.queue); n++ {
		need -= in.queue[n].Device
	}
	return p.evict(in, slices.Clone(in.queue[:n]), reason, cause)
}

// evict evicts the given volumes of the queue.
func (p *planner) evict(in *pool, these []*inventory.Volume, reason Reason, cause string) []Eviction {
	var out []Eviction
	for _, v := range these {
		in.queue = slices.DeleteFunc(in.queue, func(other *inventory.Volume) bool { return other == v })
		in.frees(v)
		e := Eviction{Volume: *v, Reason: reason}
		if v.State == volume.Unreferenced {
			e.Message = fmt.Sprintf("%s; this volume gives back %s: %s", cause, v.Device, p.idle(v))
		} else {
			e.Reason = ReasonOrphan
			e.Message = fmt.Sprintf("%s, and nothing unreferenced is left; this orphan gives back %s: %s", cause, v.Device, p.describe(v))
		}
		out = append(out, e)
	}
	return out
}

func percent(part, whole volume.Bytes) int {
	if whole <= 0 {
		return 0
	}
	return int(part * 100 / whole)
}

// MetadataUsedPercent returns how full the usable half of a group's LVM metadata area is: LVM writes each version of
// the metadata next to the previous one.
func MetadataUsedPercent(p inventory.Pool) int {
	usable := p.MetadataSize / 2
	return percent(max(0, usable-p.MetadataFree), usable)
}
