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

// A ReplicaEviction is a replica to evict because its room is needed. That takes several
// steps (see Steps), and is withdrawn as soon as a plan does not name the replica.
type ReplicaEviction struct {
	Volume           inventory.Volume
	PersistentVolume persistentvolume.Volume
	Message          string // why, in words with numbers
}

// goingTime is how long the room of a replica whose eviction is confirmed counts as coming. Its
// claim goes within seconds, unless something is wrong with its VolumeManager or its
// controller; then nobody must wait for that room without a word.
const goingTime = 5 * time.Minute

// A candidate is a replica that may go.
type candidate struct {
	volume *inventory.Volume
	pv     *persistentvolume.Volume
}

// classifyReplica notes what a volume that is a replica may give.
func (p *planner) classifyReplica(v *inventory.Volume, in *pool) {
	c := p.index.sole[KeyOf(v)]
	if c == nil || v.Kind != volume.Dataset || c.Replica.Dataset == "" || c.Cluster != p.view.Cluster {
		return
	}
	switch {
	case c.Replica.Going() && !c.Leaving() && p.view.Now.Sub(c.Replica.Evictable) > goingTime:
		in.stuck.add(v)
	case c.Replica.Going():
		in.awaits(v) // its claim is deleted, or about to be
	case p.replicaEvictable(v, c, in):
		in.replicas = append(in.replicas, candidate{v, c})
	default:
		in.kept.add(v)
	}
}

// user is a pod of this node that uses a replica, or something that stands for one
// where that is not known.
func (p *planner) user(c *persistentvolume.Volume) string {
	if !p.view.PodsKnown {
		return "perhaps a pod"
	}
	return cmp.Or(p.view.Users[ClaimKey{c.ClaimNamespace, c.ClaimName}], p.view.Users[ClaimKey{c.ClaimNamespace, c.Replica.Readers}])
}

// evictReplicas chooses the replicas that go so that promised volumes of claims can be
// made, when what nobody references is not enough: those that were asked to go
// before, then the least recently used, and none that does not help.
//
// Nothing else drives them out. Were a pool that is merely full, or another
// dataset, a reason, each would be made anew at once where another went, and that
// without end.
func (p *planner) evictReplicas(in *pool) []ReplicaEviction {
	slices.SortFunc(in.replicas, func(a, b candidate) int {
		return cmp.Or(firstAsked(a.pv, b.pv), evictionOrder(a.volume, b.volume))
	})
	now, wants := in.comingRoom(), []demand{}
	for _, d := range in.demands {
		if d.pv.Kind == volume.Dataset {
			now.keep(d) // that much is theirs, and they get no more
		} else {
			wants = append(wants, d)
		}
	}
	if len(wants) == 0 && in.shared == 0 {
		return nil
	}
	now = now.with(in.queue)
	var volumes []*inventory.Volume
	for _, c := range in.replicas {
		volumes = append(volumes, c.volume)
	}
	g := in.goalWithin(wants, now.with(volumes))
	cause := in.whyPromised(g, in.comingRoom())
	var out []ReplicaEviction
	for _, v := range g.victims(now, volumes) {
		at := slices.IndexFunc(in.replicas, func(c candidate) bool { return c.volume == v })
		c := in.replicas[at]
		in.replicas = slices.Delete(in.replicas, at, at+1)
		out = append(out, ReplicaEviction{Volume: *c.volume, PersistentVolume: *c.pv, Message: fmt.Sprintf("%s; replica %s of dataset %s/%s gives back %s: it was last used %s",
			cause, c.volume.Name, c.pv.ClaimNamespace, c.pv.Replica.Owner, c.volume.Device, ago(p.view.Now, c.volume.LastUsed))})
		in.frees(v)
	}
	return out
}

// firstAsked puts what was asked to go before what was not: no more is asked for
// because a volume that goes by itself was used again.
func firstAsked(a, b *persistentvolume.Volume) int {
	rank := func(c *persistentvolume.Volume) int {
		if c.Replica.Asked.IsZero() {
			return 1
		}
		return 0
	}
	return rank(a) - rank(b)
}

// leaving is what the replicas hold that may go.
func (p *pool) leaving() (sum volume.Bytes) {
	for _, c := range p.replicas {
		sum += c.volume.Device
	}
	return sum
}
