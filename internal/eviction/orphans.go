package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// minBlockingOrphans is the least number of ready orphans that can block evictions, however few volumes there are.
const minBlockingOrphans = 5

// findOrphans collects the volumes without a PersistentVolume.
func (p *planner) findOrphans() {
	for i := range p.view.Volumes {
		v := &p.view.Volumes[i]
		if !p.orphan(v) {
			continue
		}
		o := Orphan{Volume: *v, Age: max(0, p.view.Now.Sub(lastSeen(v))), Message: p.describeOrphan(v) + p.orphanAdvice(v)}
		p.result.Orphans = append(p.result.Orphans, o)
		pool, there := p.byName[v.Pool()]
		if !there {
			continue
		}
		pool.orphaned.add(v)
		if p.orphanEvictable(v, pool) {
			pool.orphans = append(pool.orphans, v)
		}
	}
	slices.SortFunc(p.result.Orphans, func(a, b Orphan) int {
		return cmp.Or(lastSeen(&a.Volume).Compare(lastSeen(&b.Volume)), byName(a.Volume, b.Volume))
	})
}

// orphan reports whether a volume is an orphan. A volume that an unreadable PersistentVolume may mean is none, nor is
// one in a renamed group: its PersistentVolume has the group's former name, and Judge reports it.
func (p *planner) orphan(v *inventory.Volume) bool {
	if v.Cluster != p.view.Cluster || v.State != volume.Ready && v.State != volume.Creating {
		return false
	}
	return !p.index.named[KeyOf(v)] && !p.index.namedByGroupUUID[groupUUIDKey{v.GroupUUID, v.Name}] && !p.index.unreadable[v.Name]
}

// lastSeen returns when a volume was created or last used, whichever is later.
func lastSeen(v *inventory.Volume) time.Time {
	if v.LastUsed.After(v.Created) {
		return v.LastUsed
	}
	return v.Created
}

// orphansBlocked returns why no orphan is evicted though the policy allows it; empty if orphans may be. A
// restored API server lacks the PersistentVolumes that were created since the backup. They may be too few for
// blocked to notice.
func (p *planner) orphansBlocked() string {
	if !p.policy.EvictOrphans || p.view.WentBack == "" {
		return ""
	}
	return fmt.Sprintf("no orphan is evicted: %s, and may lack PersistentVolumes that were made since; %s, then restart the node daemon (delete its pod)", p.view.restored(), blockedAdvice)
}

// orphansAllowed returns how many orphans this plan may evict.
func (p *planner) orphansAllowed() int {
	if p.result.OrphansBlocked != "" {
		return 0
	}
	return max(0, max(1, p.volumeCount*p.policy.OrphanShare/100)-p.view.OrphansEvicted)
}

// orphansFor returns the orphans of a pool that may be evicted, in order.
func (p *planner) orphansFor(pool *poolPlan) []*inventory.Volume {
	// One that frees nothing here is no candidate, so it must not use up the budget.
	pool.orphans = slices.DeleteFunc(pool.orphans, func(v *inventory.Volume) bool { return pool.frees(v) <= 0 })
	slices.SortFunc(pool.orphans, evictionOrder)
	return pool.orphans[:min(len(pool.orphans), p.orphanBudget)]
}

// blocked returns why nothing at all may be evicted; empty if evictions are possible. An API server that has
// lost its data shows no PersistentVolumes, as if no volume were wanted.
func (p *planner) blocked() string {
	if p.view.Cluster == "" {
		return "nothing is evicted: the UID of this cluster is not known, so no volume is known to be this cluster's; check the daemon's access to namespace kube-system"
	}
	persistentVolumes := 0
	for i := range p.view.PersistentVolumes {
		if p.view.PersistentVolumes[i].Cluster == p.view.Cluster {
			persistentVolumes++
		}
	}
	if persistentVolumes == 0 && p.readyCount > 0 {
		return fmt.Sprintf("nothing is evicted: the API server shows no PersistentVolume of this cluster for this node, which has %s in state ready, as if it had come back empty; %s", countVolumes(p.readyCount), blockedAdvice)
	}
	orphans := 0
	for i := range p.result.Orphans {
		if p.result.Orphans[i].Volume.State == volume.Ready {
			orphans++
		}
	}
	if orphans >= minBlockingOrphans && 2*orphans > p.readyCount {
		return fmt.Sprintf("nothing is evicted: no PersistentVolume names %d of the %s in state ready, as if the API server had been restored from an old backup; %s", orphans, countVolumes(p.readyCount), blockedAdvice)
	}
	return ""
}

// blockedAdvice is the advice when evictions are blocked.
const blockedAdvice = "bring the PersistentVolumes back (`flexlvm volumes undelete NAME --dry-run` prints each), or give up the volumes that nobody needs (`flexlvm volumes forget NAME`)"
