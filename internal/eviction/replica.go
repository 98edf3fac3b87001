package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A ReplicaEviction is a replica to evict because its room is needed. That takes several steps (see Steps), and
// is withdrawn as soon as a plan does not include the replica.
type ReplicaEviction struct {
	Volume           inventory.Volume
	PersistentVolume persistentvolume.Volume
	Message          string // why, in a sentence with numbers
}

// confirmedTimeout is how long the room of a replica whose eviction is confirmed counts as about to be free. Its claim
// is deleted within seconds, unless its VolumeManager or the controller has a problem; then the wait for that
// room must be reported.
const confirmedTimeout = 5 * time.Minute

// A candidate is a replica that may be evicted.
type candidate struct {
	volume *inventory.Volume
	pv     *persistentvolume.Volume
}

// classifyReplica counts a replica in its pool.
func (p *planner) classifyReplica(v *inventory.Volume, pool *poolPlan) {
	c := p.index.solePV[KeyOf(v)]
	if c == nil || v.Kind != volume.Dataset || c.Replica.Dataset == "" || c.Cluster != p.view.Cluster {
		return
	}
	switch {
	case c.Replica.EvictionCommitted() && !c.BeingRemoved() && p.view.Now.Sub(c.Replica.Evictable) > confirmedTimeout:
		pool.stuckReplicas.add(v)
	case c.Replica.EvictionCommitted():
		pool.addPending(v) // its claim is deleted or about to be
	case p.replicaEvictable(v, c, pool):
		pool.replicas = append(pool.replicas, candidate{v, c})
	default:
		pool.keptReplicas.add(v)
	}
}

// user returns a pod of this node that uses a replica, or a placeholder if the pods are not known.
func (p *planner) user(c *persistentvolume.Volume) string {
	if !p.view.PodsKnown {
		return "perhaps a pod"
	}
	return cmp.Or(p.view.Users[ClaimKey{c.ClaimNamespace, c.ClaimName}], p.view.Users[ClaimKey{c.ClaimNamespace, c.Replica.Readers}])
}

// evictReplicas chooses the replicas to evict for promised volumes of claims, if evicting unreferenced volumes
// is not enough: those whose eviction was requested before come first, then the least recently used, and none
// that does not help.
//
// Nothing else evicts replicas. If a full pool or another dataset did, the evicted replicas would be created
// again immediately, endlessly.
func (p *planner) evictReplicas(pool *poolPlan) []ReplicaEviction {
	slices.SortFunc(pool.replicas, func(a, b candidate) int {
		return cmp.Or(requestedFirst(a.pv, b.pv), evictionOrder(a.volume, b.volume))
	})
	now, wants := pool.roomSoon(), []demand{}
	for _, d := range pool.demands {
		if d.pv.Kind == volume.Dataset {
			now.reserve(d) // replicas use the room they need, but get no more
		} else {
			wants = append(wants, d)
		}
	}
	if len(wants) == 0 && pool.shared == 0 {
		return nil
	}
	now = now.with(pool.queue)
	var volumes []*inventory.Volume
	for _, c := range pool.replicas {
		volumes = append(volumes, c.volume)
	}
	g := pool.goalWithin(wants, now.with(volumes))
	cause := pool.whyPromised(g, pool.roomSoon())
	var out []ReplicaEviction
	for _, v := range g.victims(now, volumes) {
		at := slices.IndexFunc(pool.replicas, func(c candidate) bool { return c.volume == v })
		c := pool.replicas[at]
		pool.replicas = slices.Delete(pool.replicas, at, at+1)
		out = append(out, ReplicaEviction{Volume: *c.volume, PersistentVolume: *c.pv, Message: fmt.Sprintf("%s; evicting replica %s of dataset %s/%s frees %s: it was last used %s",
			cause, c.volume.Name, c.pv.ClaimNamespace, c.pv.Replica.Owner, c.volume.Allocated, ago(p.view.Now, c.volume.LastUsed))})
		pool.addFreed(v)
	}
	return out
}

// requestedFirst sorts replicas whose eviction was requested before the others. So no further eviction is requested
// because a volume that would otherwise be evicted was used again.
func requestedFirst(a, b *persistentvolume.Volume) int {
	rank := func(c *persistentvolume.Volume) int {
		if c.Replica.Asked.IsZero() {
			return 1
		}
		return 0
	}
	return rank(a) - rank(b)
}

// reclaimableReplicas returns the room that evicting the replicas that may be evicted makes.
func (p *poolPlan) reclaimableReplicas() (sum volume.Bytes) {
	for _, c := range p.replicas {
		sum += p.frees(c.volume)
	}
	return sum
}
