package eviction

import (
	"cmp"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Reason is why a volume is evicted, in one word.
type Reason string

// The reasons, in the order of a plan: volumes that are evicted in any case come first, so that their room
// counts for the rest.
const (
	// ReasonImmediate: its class has it removed as soon as it is released.
	ReasonImmediate Reason = "Immediate"
	// ReasonMaxAge: it has been unreferenced for longer than --max-age.
	ReasonMaxAge Reason = "MaxAge"
	// ReasonPromised: volumes promised on this node need its room.
	ReasonPromised Reason = "Promised"
	// ReasonHighThreshold: its pool is at or over --high-threshold-percent.
	ReasonHighThreshold Reason = "HighThreshold"
	// ReasonHeadroom: less is free than --headroom keeps for future claims.
	ReasonHeadroom Reason = "Headroom"
	// ReasonLVMMetadata: the LVM metadata area of its group is so full that the group takes no new volumes.
	ReasonLVMMetadata Reason = "LVMMetadata"
	// ReasonOrphan: there is pressure, nothing unreferenced is left, and
	// --evict-orphans is set.
	ReasonOrphan Reason = "Orphan"
	// ReasonReplica: it is an unused replica of a dataset whose eviction was requested because volumes promised
	// on this node need its room.
	ReasonReplica Reason = "Replica"
)

// An Eviction is a volume to remove. Evictions are carried out in the order of the plan; if one fails, the
// others are still carried out.
type Eviction struct {
	Volume  inventory.Volume
	Reason  Reason
	Message string // why, in a sentence with numbers
	// Replica is set with ReasonReplica.
	Replica persistentvolume.Replica
}

// An Orphan is a flexlvm volume of this cluster, in state creating or ready, that no
// PersistentVolume names.
type Orphan struct {
	Volume  inventory.Volume
	Age     time.Duration // since it was created or last used, whichever is later
	Message string
}

// A PoolResult is the state of a pool before the plan is carried out.
type PoolResult struct {
	Pool inventory.Pool
	// Promised is what PersistentVolumes of this node still need.
	Promised volume.Bytes
	// Shared is the part of Promised that overwriting the shared blocks of a thin pool takes.
	Shared volume.Bytes
	// Unwritten is what the volumes of a thin pool may still allocate, without Shared; see unwritten.
	Unwritten volume.Bytes
	// Reclaimable is the room of the volumes that may be evicted now, except orphans, View.KeptUnchecked, and
	// room on devices that LVM may not allocate from. If
	// Result.Blocked is set, none of them is evicted.
	Reclaimable volume.Bytes
	// DeviceReclaimable is the part of Reclaimable and Removing on each device of Pool.DeviceFree. If
	// Result.Blocked is set, only Removing counts.
	DeviceReclaimable []volume.Bytes
	// Removing is what volumes hold that are being removed, and replicas whose eviction is confirmed: it is
	// about to be free, and is in neither Pool.Free nor Reclaimable.
	Removing volume.Bytes
	// Replicas is the part of Reclaimable that replicas of datasets hold.
	Replicas volume.Bytes
	// Allocatable is what PersistentVolumes may take of the pool in total; see allocatable.
	Allocatable volume.Bytes
	// Charged is what PersistentVolumes are charged of the pool in total. Allocatable less Charged can still be
	// promised. Both are 0 while the content of the pool is unknown.
	Charged volume.Bytes
	// Closed is why no new volume may be promised here; empty if one may.
	Closed string
	// RemovalsFail: so many committed removals have failed that no volume is evicted for its room (MaxUnfinished).
	RemovalsFail bool
	// UsedPercent is how much of the pool is used, by volumes of flexlvm or others, rounded down.
	UsedPercent int
	// ByState counts the volumes of this cluster.
	ByState map[volume.State]int
	// Foreign counts logical volumes that are not flexlvm's or are another cluster's.
	Foreign int
	// Pressure: the pool is at or over its high threshold, or has less free space
	// than Promised.
	Pressure        bool
	PressureMessage string
	// Shortfall is the room that is missing even after all possible evictions; 0 for none.
	Shortfall        volume.Bytes
	ShortfallMessage string
	// Waiting are the PersistentVolumes that lack room even after all possible evictions, the smallest first.
	Waiting []*persistentvolume.Volume
	// InUseMessage is why the pool is at or over its high threshold because of volumes in use, and what
	// prevents more room; empty otherwise.
	InUseMessage string
	// StalledMessage is why no volume is evicted for its room from a pool without a shortfall, although some
	// could be: removals have failed. It is empty otherwise.
	StalledMessage string
}

// A Result holds the findings and decisions of Plan. Every list is sorted.
type Result struct {
	Evictions        []Eviction
	ReplicaEvictions []ReplicaEviction  // by pool, in order; other controllers take part in them
	Pools            []PoolResult       // by name
	Orphans          []Orphan           // the oldest first
	Foreign          []inventory.Volume // volumes of other clusters; never touched
	Problems         []inventory.Volume // volumes with a Problem, which an administrator must check
	Released         []Released         // unreferenced and retained volumes, by pool, in the order of eviction
	// Blocked is why nothing at all is evicted; empty if evictions are possible.
	Blocked string
	// OrphansBlocked is why no orphan is evicted though the policy allows it; empty if orphans may be.
	OrphansBlocked string
	// Postponed: a volume would be evicted for headroom or a threshold if View.StartsUntil had passed.
	Postponed bool
}

// Plan decides which volumes are evicted. Candidates are unreferenced volumes whose eviction nothing prevents
// (see whyKept), the least recently used first. They are evicted immediately if their class
// requires it or they are too old, and as many as needed when promised volumes need room, a pool reaches its
// high threshold, or less is free than is kept for future claims; the last two wait while pods are starting.
// Under pressure, orphans follow, if the policy allows it. If none of this frees some of a group's LVM metadata area
// that is too full, one volume is evicted for that.
func Plan(view View, policy Policy) Result {
	p := planner{view: view, policy: policy, index: newIndex(view)}
	p.initPools()
	for i := range view.Volumes {
		p.classify(&view.Volumes[i])
	}
	p.addDemands()
	p.findOrphans()
	p.result.Blocked = p.blocked()
	p.result.Released = p.released()
	p.result.OrphansBlocked = p.orphansBlocked()
	p.orphanBudget = p.orphansAllowed()
	for _, pool := range p.pools {
		p.result.Evictions = append(p.result.Evictions, p.decide(pool)...)
		p.result.Pools = append(p.result.Pools, pool.result)
	}
	for _, pool := range p.pools {
		p.result.Evictions = append(p.result.Evictions, p.evictForMetadata(pool)...)
	}
	slices.SortFunc(p.result.Foreign, byName)
	slices.SortFunc(p.result.Problems, byName)
	return p.result
}

// A planner is the state of one Plan.
type planner struct {
	view         View
	policy       Policy
	index        index
	pools        []*poolPlan // by name
	byName       map[volume.PoolName]*poolPlan
	readyCount   int // volumes of this cluster in state ready
	volumeCount  int // volumes of this cluster
	orphanBudget int
	result       Result
}

func (p *planner) initPools() {
	p.byName = make(map[volume.PoolName]*poolPlan, len(p.view.Pools))
	for _, given := range p.view.Pools {
		pool := &poolPlan{Pool: given, problem: p.index.groupProblems[given.Name.Group()], keptUnreferenced: map[Kept]*amount{}, evicted: map[*inventory.Volume]bool{}}
		pool.freeSoonOn, pool.closedSoon = freeOn(given), given.Free-freeToAllocate(given)
		for device := range pool.freeSoonOn {
			pool.freeSoonOn[device] = 0 // addOn ignores other devices
		}
		pool.result = PoolResult{Pool: given, Foreign: given.LVs, ByState: map[volume.State]int{}}
		p.pools = append(p.pools, pool)
	}
	slices.SortFunc(p.pools, func(a, b *poolPlan) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID))
	})
	for _, pool := range p.pools {
		p.byName[pool.Name] = pool
	}
}

// classify counts a volume in its pool and its category. A volume whose pool is not in the view is only
// reported.
func (p *planner) classify(v *inventory.Volume) {
	if v.State != "" && v.Cluster != p.view.Cluster {
		p.result.Foreign = append(p.result.Foreign, *v)
		return
	}
	if v.Problem != "" || v.State == "" {
		p.result.Problems = append(p.result.Problems, *v)
	}
	pool, there := p.byName[v.Pool()]
	if there {
		pool.result.Foreign = max(0, pool.result.Foreign-1)
	}
	if v.State == "" {
		return
	}
	p.volumeCount++
	if v.State == volume.Ready {
		p.readyCount++
	}
	if !there {
		return
	}
	pool.result.ByState[v.State]++
	switch v.State {
	case volume.Doomed:
		p.classifyDoomed(v, pool)
	case volume.Ready, volume.Creating:
		p.classifyReplica(v, pool)
	case volume.Unreferenced:
		p.classifyUnreferenced(v, pool)
	}
}

func (p *planner) classifyUnreferenced(v *inventory.Volume, pool *poolPlan) {
	if p.view.isBeingRemoved(v) {
		pool.removing = true
		pool.addPending(v)
		return
	}
	switch kept := p.whyKept(v, pool); {
	case kept != "":
		if pool.keptUnreferenced[kept] == nil {
			pool.keptUnreferenced[kept] = &amount{}
		}
		pool.keptUnreferenced[kept].add(v)
	case p.view.KeptUnchecked[v.UUID]:
		pool.keptUnchecked = append(pool.keptUnchecked, v)
	default:
		pool.queue = append(pool.queue, v)
	}
}

// classifyDoomed counts a doomed volume, and its room if that is about to be free.
func (p *planner) classifyDoomed(v *inventory.Volume, pool *poolPlan) {
	pool.removing = pool.removing || p.view.Removing[v.ID()]
	if v.Problem != "" {
		pool.unfinished = append(pool.unfinished, v)
	}
	if p.view.aboutToBeFree(v) {
		pool.addPending(v)
	}
}

// evictionOrder sorts the least recently used first, compared in whole seconds, as in the NodeStorage; then
// the larger first; then by name.
func evictionOrder(a, b *inventory.Volume) int {
	return cmp.Or(
		a.LastUsed.Truncate(time.Second).Compare(b.LastUsed.Truncate(time.Second)),
		cmp.Compare(b.Allocated, a.Allocated),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.UUID, b.UUID),
	)
}

func byName(a, b inventory.Volume) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID))
}
