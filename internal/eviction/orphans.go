package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fewOrphans is how many orphans among the ready volumes are not suspicious yet,
// however few volumes there are.
const fewOrphans = 5

// findOrphans lists the volumes without a PersistentVolume.
func (p *planner) findOrphans() {
	for i := range p.view.Volumes {
		v := &p.view.Volumes[i]
		if !p.orphan(v) {
			continue
		}
		o := Orphan{Volume: *v, Age: max(0, p.view.Now.Sub(lastSeen(v))), Message: p.describe(v) + p.whatToDo(v)}
		p.result.Orphans = append(p.result.Orphans, o)
		in, there := p.byName[v.Pool()]
		if !there {
			continue
		}
		in.orphaned.add(v)
		if p.orphanEvictable(v, in) {
			in.orphans = append(in.orphans, v)
		}
	}
	slices.SortFunc(p.result.Orphans, func(a, b Orphan) int {
		return cmp.Or(lastSeen(&a.Volume).Compare(lastSeen(&b.Volume)), byName(a.Volume, b.Volume))
	})
}

// orphan reports whether a volume is one. A PersistentVolume that cannot be read
// explains every volume that it may mean.
func (p *planner) orphan(v *inventory.Volume) bool {
	if v.Cluster != p.view.Cluster || v.State != volume.Ready && v.State != volume.Creating {
		return false
	}
	return !p.index.named[KeyOf(v)] && !p.index.unread[v.Name]
}

// lastSeen is when a volume was made or last used, whichever is later.
func lastSeen(v *inventory.Volume) time.Time {
	if v.LastUsed.After(v.Created) {
		return v.LastUsed
	}
	return v.Created
}

// orphansBlocked says why no orphan goes though orphans may be evicted, or nothing. Only the backup's age
// bounds how many PersistentVolumes an API server has lost that was restored from it: they may be few.
func (p *planner) orphansBlocked() string {
	if !p.policy.EvictOrphans || p.view.WentBack == "" {
		return ""
	}
	return fmt.Sprintf("no orphan is evicted: %s, and may lack PersistentVolumes that were made since; %s, then restart the node daemon (delete its pod)", p.view.restored(), wayOut)
}

// orphansAllowed is how many orphans may go in this plan.
func (p *planner) orphansAllowed() int {
	if p.result.OrphansBlocked != "" {
		return 0
	}
	return max(0, max(1, p.ours*p.policy.OrphanShare/100)-p.view.OrphansEvicted)
}

// orphansFor are those of a pool that may go, in order.
func (p *planner) orphansFor(in *pool) []*inventory.Volume {
	slices.SortFunc(in.orphans, evictionOrder)
	return in.orphans[:min(len(in.orphans), p.orphanBudget)]
}

// blocked says why nothing may be evicted at all, or nothing. An API server that has lost its data
// shows no PersistentVolume, as if nobody wanted any volume.
func (p *planner) blocked() string {
	if p.view.Cluster == "" {
		return "nothing is evicted: the UID of this cluster is not known, so no volume can be told to be this cluster's; look at the daemon's access to namespace kube-system"
	}
	persistentVolumes := 0
	for i := range p.view.PersistentVolumes {
		if p.view.PersistentVolumes[i].Cluster == p.view.Cluster {
			persistentVolumes++
		}
	}
	if persistentVolumes == 0 && p.ready > 0 {
		return fmt.Sprintf("nothing is evicted: the API server shows no PersistentVolume of this cluster for this node, which has %s in state ready, as if it had come back empty; %s", volumes(p.ready), wayOut)
	}
	orphans := 0
	for i := range p.result.Orphans {
		if p.result.Orphans[i].Volume.State == volume.Ready {
			orphans++
		}
	}
	if orphans >= fewOrphans && 2*orphans > p.ready {
		return fmt.Sprintf("nothing is evicted: no PersistentVolume names %d of the %s in state ready, as if the API server had been restored from an old backup; %s", orphans, volumes(p.ready), wayOut)
	}
	return ""
}

// wayOut is what to do where a plan is blocked.
const wayOut = "bring the PersistentVolumes back (`flexlvm volumes undelete NAME --dry-run` prints each), or give up the volumes that nobody needs (`flexlvm volumes forget NAME`)"
