package eviction

import (
	"cmp"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Released is a volume whose PersistentVolume was released.
type Released struct {
	Volume inventory.Volume
	// Order is its position, from 1, among the volumes of its pool that may be evicted; 0 if it may not be.
	// Volumes whose class has them removed immediately come first.
	Order int
	Kept  Kept // why it may not be evicted; empty if it may be
}

// A Kept is why a released volume may not be evicted, in one word.
type Kept string

// The reasons, as in the NodeStorage.
const (
	KeptTooYoung Kept = "TooYoung"
	// KeptInUse: its device is open, it is mounted, or snapshots depend on it.
	KeptInUse Kept = "InUse"
	// KeptWanted: a PersistentVolume names it, perhaps by a former name of its group, or is to be a copy of it.
	KeptWanted Kept = "Wanted"
	// KeptProblem: it or its pool has a problem.
	KeptProblem  Kept = "Problem"
	KeptRetained Kept = "Retained"
	KeptRemoving Kept = "Removing"
)

// released returns the released volumes of this cluster, with their positions in the eviction order.
func (p *planner) released() []Released {
	var out []Released
	for i := range p.view.Volumes {
		v := &p.view.Volumes[i]
		pool, there := p.byName[v.Pool()]
		switch {
		case v.Cluster != p.view.Cluster || !there:
		case v.State == volume.Retained:
			out = append(out, Released{Volume: *v, Kept: KeptRetained})
		case p.view.isBeingRemoved(v): // the removal may fail
			out = append(out, Released{Volume: *v, Kept: KeptRemoving})
		case v.State == volume.Unreferenced:
			out = append(out, Released{Volume: *v, Kept: p.whyKept(v, pool)})
		}
	}
	slices.SortFunc(out, func(a, b Released) int {
		return cmp.Or(cmp.Compare(a.Volume.Pool(), b.Volume.Pool()), cmp.Compare(evictionRank(a), evictionRank(b)), evictionOrder(&a.Volume, &b.Volume))
	})
	place := map[volume.PoolName]int{}
	for i := range out {
		if out[i].Kept == "" {
			place[out[i].Volume.Pool()]++
			out[i].Order = place[out[i].Volume.Pool()]
		}
	}
	return out
}

// evictionRank is 0 for a volume whose class has it removed immediately, and 1 for all others.
func evictionRank(r Released) int {
	if r.Volume.Reclaim == volume.ReclaimImmediate {
		return 0
	}
	return 1
}
