package page

import (
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/overview"
)

// nextOfPool is how many volumes of each pool that go when room is needed the queue has.
const nextOfPool = 3

// A digest is what all views of one Snapshot have in common.
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

// staleAfter is how old a digest may be although nothing changed: a node that is silent
// changes nothing, and that is a problem.
const staleAfter = 15 * time.Second

// A digester keeps the last digest: several windows show the same cluster.
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
