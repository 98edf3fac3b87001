package nodeagent

import (
	"slices"
	"sync"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// failedEvictions remembers the evictions of this process whose removal has failed. Such a removal may have been
// committed; then no plan names the volume any more, but the reason for its eviction must still be announced.
// failedEvictions may be used from several goroutines.
type failedEvictions struct {
	mu   sync.Mutex
	byID map[string]job
}

func newFailedEvictions() *failedEvictions { return &failedEvictions{byID: map[string]job{}} }

func (b *failedEvictions) note(j job) {
	if j.eviction == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.byID[j.volume.ID()] = j
}

func (b *failedEvictions) of(id string) (job, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j, there := b.byID[id]
	return j, there
}

func (b *failedEvictions) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byID, id)
}

// gone returns and drops the evictions whose volumes are missing from an inventory that has their pools. It
// also drops those whose volumes are wanted again.
func (b *failedEvictions) gone(in inventory.Inventory) (out []job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, j := range b.byID {
		at := slices.IndexFunc(in.Volumes, func(v inventory.Volume) bool { return v.ID() == id })
		seen := slices.ContainsFunc(in.Pools, func(p inventory.Pool) bool { return p.Name == j.volume.Pool() && !p.VolumesUnknown() })
		switch {
		case at < 0 && seen:
			out = append(out, j)
			delete(b.byID, id)
		case at >= 0 && in.Volumes[at].State != volume.Doomed && in.Volumes[at].State != volume.Unreferenced:
			delete(b.byID, id)
		}
	}
	return out
}
