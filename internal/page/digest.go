package page

import (
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/overview"
)

// nextOfPool is how many volumes of each pool the queue shows that are evicted when room is needed.
const nextOfPool = 3

// A digest is what all views of one Snapshot share.
type digest struct {
	Snapshot
	made     time.Time
	version  uint64
	status   overview.Status
	next     []overview.Eviction
	datasets []dataset
}

func digestOf(s Snapshot, version uint64, now time.Time) *digest {
	return &digest{
		Snapshot: s, made: now, version: version,
		status: overview.StatusOf(s.Storages, now), next: overview.NextOf(s.Storages, nextOfPool, now), datasets: datasetsOf(s.Managers),
	}
}

// staleAfter is the age from which a digest is computed again although nothing changed: a node that stops
// reporting changes nothing, but becomes a problem.
const staleAfter = 15 * time.Second

// A digester caches the last digest, because several windows show the same cluster.
type digester struct {
	source Source
	now    func() time.Time

	mu   sync.Mutex
	last *digest
}

func (d *digester) get() *digest {
	d.mu.Lock()
	defer d.mu.Unlock()
	version, now := d.source.Version(), d.now()
	if d.last == nil || d.last.version != version || now.Sub(d.last.made) >= staleAfter {
		d.last = digestOf(d.source.Snapshot(), version, now)
	}
	return d.last
}
