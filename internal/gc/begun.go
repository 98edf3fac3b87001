package gc

import (
	"slices"
	"sync"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// begun remembers the evictions of this process whose removal has failed: it may
// have committed before, and then no plan names the volume any more, but people
// are still to be told why it went. It may be used from several goroutines.
type begun struct {
	mu     sync.Mutex
	byUUID map[string]job
}

func newBegun() *begun { return &begun{byUUID: map[string]job{}} }

func (b *begun) note(j job) {
	if j.eviction == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.byUUID[j.volume.UUID] = j
}

func (b *begun) of(uuid string) (job, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j, there := b.byUUID[uuid]
	return j, there
}

func (b *begun) drop(uuid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byUUID, uuid)
}

// gone gives those whose volumes are not in an inventory any more though their
// pools are, and forgets them; and forgets those that were not committed.
func (b *begun) gone(in node.Inventory) (out []job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uuid, j := range b.byUUID {
		at := slices.IndexFunc(in.Volumes, func(v node.Volume) bool { return v.UUID == uuid })
		seen := slices.ContainsFunc(in.Pools, func(p node.Pool) bool { return p.Name == j.volume.Pool() })
		switch {
		case at < 0 && seen:
			out = append(out, j)
			delete(b.byUUID, uuid)
		case at >= 0 && in.Volumes[at].State != volume.Doomed && in.Volumes[at].State != volume.Unreferenced:
			delete(b.byUUID, uuid) // somebody wants it again
		}
	}
	return out
}
