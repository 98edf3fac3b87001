package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// bandwidth limits the bytes per second of all its users together.
type bandwidth struct {
	perSecond int64 // 0: no bound

	mu sync.Mutex
	// free is when all bytes granted so far will have been paid for.
	free time.Time
}

// minShare is the bandwidth, in bytes per second, from which another request is worthwhile.
const minShare = 256 * store.KiB

// limitRequests returns how many of the requests share the bandwidth. Too many would all complete their
// objects at the very end, and the first are wanted soon.
func (b *bandwidth) limitRequests(requests int) int {
	if b.perSecond <= 0 {
		return requests
	}
	return int(min(int64(requests), max(1, b.perSecond/minShare)))
}

// portionsPerSecond is into how many portions the bytes of a second are divided. With 64 workers each
// gets one within a second, so no connection is idle for so long that its server closes it.
const portionsPerSecond = 64

// portion returns how many bytes to request at a time from wait for a buffer of size bytes: whole
// blocks, so that direct writes stay aligned.
func (b *bandwidth) portion(size int64) int64 {
	if b.perSecond <= 0 {
		return size
	}
	return min(max(b.perSecond/portionsPerSecond&^(destination.DirectBlock-1), destination.DirectBlock), size)
}

// wait waits until n more bytes are allowed.
func (b *bandwidth) wait(ctx context.Context, n int64) error {
	if b.perSecond <= 0 {
		return nil
	}
	now := time.Now()
	b.mu.Lock()
	if b.free.Before(now) {
		b.free = now
	}
	due := b.free.Sub(now)
	b.free = b.free.Add(time.Duration(float64(n) / float64(b.perSecond) * float64(time.Second)))
	b.mu.Unlock()
	if due <= 0 {
		return nil
	}
	return store.Wait(ctx, due)
}

// gate bounds how many requests are open. A throttling source halves the bound; each series of
// successes raises it by one.
type gate struct {
	mu       sync.Mutex
	cond     *sync.Cond
	max      int
	limit    int
	open     int
	good     int
	narrowed time.Time
}

func newGate(limit int) *gate {
	g := &gate{max: limit, limit: limit}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *gate) acquire() {
	g.mu.Lock()
	for g.open >= g.limit {
		g.cond.Wait()
	}
	g.open++
	g.mu.Unlock()
}

// release ends a request. Many open requests are throttled at the same time, so the gate narrows at most
// once per second.
func (g *gate) release(throttled bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	switch {
	case throttled && now.Sub(g.narrowed) >= time.Second:
		g.limit, g.good, g.narrowed = max(1, g.limit/2), 0, now
	case !throttled && g.limit < g.max:
		if g.good++; g.good >= 2*g.limit {
			g.limit, g.good = g.limit+1, 0
		}
	}
	g.cond.Broadcast()
}

// smallMean is the mean size in bytes up to which objects are small.
const smallMean = 256 * store.KiB

// chooseParallel returns how many requests to have open at the same time; parallel if it is set. A few requests
// for large objects fill a link, while small objects spend their time waiting for the first byte.
func chooseParallel(parallel int, objects []store.Object) int {
	if parallel > 0 {
		return parallel
	}
	bytes, largest := int64(0), int64(0)
	for _, o := range objects {
		bytes, largest = bytes+o.Size, max(largest, o.Size)
	}
	switch mean := bytes / max(1, int64(len(objects))); {
	case len(objects) == 0:
		return 1
	case mean >= 8*store.MiB:
		return 8
	case mean > smallMean || largest > wholeLimit: // ranges of large objects share the memory that the workers leave
		return 32
	}
	return 64
}

// Bounds of a worker's buffer in bytes.
const (
	minBuffer = 64 * store.KiB
	maxBuffer = store.MiB
)

// buffers divides memory, in bytes, among workers. Each has one buffer, and all bytes in flight are in
// buffers.
func buffers(memory int64, workers int) (count int, size int64) {
	if memory <= 0 {
		return workers, maxBuffer
	}
	size = min(max(memory/int64(workers), minBuffer), maxBuffer) &^ 4095
	return int(max(1, min(int64(workers), memory/size))), size
}
