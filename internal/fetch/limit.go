package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// bandwidth bounds the bytes a second that all workers take together.
type bandwidth struct {
	perSecond int64 // 0: no bound

	mu sync.Mutex
	// free is when all that was promised so far will have been paid for.
	free time.Time
}

// leastShare is how many bytes a second a request is worth having for.
const leastShare = 256 * store.KiB

// share is how many of most requests share the bandwidth: many would all bring their
// objects at the very end, and the first are wanted soon.
func (b *bandwidth) share(most int) int {
	if b.perSecond <= 0 {
		return most
	}
	return int(min(int64(most), max(1, b.perSecond/leastShare)))
}

// portionsASecond is in how many portions the bytes of a second are handed out. With
// 64 workers each has one within a second: none keeps a connection idle for so long
// that its server closes it.
const portionsASecond = 64

// portion is how many bytes to take at once for a buffer of most bytes: whole blocks,
// so that direct writes stay aligned.
func (b *bandwidth) portion(most int64) int64 {
	if b.perSecond <= 0 {
		return most
	}
	return min(max(b.perSecond/portionsASecond&^(destination.DirectBlock-1), destination.DirectBlock), most)
}

// take waits until n more bytes may come.
func (b *bandwidth) take(ctx context.Context, n int64) error {
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

// gate bounds how many requests are open. A source that asks for fewer halves
// it; each stretch of success adds one again.
type gate struct {
	mu       sync.Mutex
	cond     *sync.Cond
	most     int
	limit    int
	open     int
	good     int
	narrowed time.Time
}

func newGate(most int) *gate {
	g := &gate{most: most, limit: most}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *gate) enter() {
	g.mu.Lock()
	for g.open >= g.limit {
		g.cond.Wait()
	}
	g.open++
	g.mu.Unlock()
}

// leave ends a request. Many requests that are open at once are throttled at
// once: that narrows the gate one time.
func (g *gate) leave(throttled bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	switch {
	case throttled && now.Sub(g.narrowed) >= time.Second:
		g.limit, g.good, g.narrowed = max(1, g.limit/2), 0, now
	case !throttled && g.limit < g.most:
		if g.good++; g.good >= 2*g.limit {
			g.limit, g.good = g.limit+1, 0
		}
	}
	g.cond.Broadcast()
}

// Objects are small up to this mean size, in bytes.
const smallMean = 256 * store.KiB

// width is how many requests to have open at once where nobody said: a few large
// ones fill a link, and small ones spend their time waiting for the first byte.
func width(parallel int, objects []store.Object) int {
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
	case mean > smallMean || largest > wholeLimit: // whose ranges share what workers leave of the memory
		return 32
	}
	return 64
}

// Bounds of a worker's buffer in bytes.
const (
	leastBuffer = 64 * store.KiB
	mostBuffer  = store.MiB
)

// buffers shares memory, in bytes, among workers: each holds one buffer, and all
// that is in flight is in buffers.
func buffers(memory int64, workers int) (count int, size int64) {
	if memory <= 0 {
		return workers, mostBuffer
	}
	size = min(max(memory/int64(workers), leastBuffer), mostBuffer) &^ 4095
	return int(max(1, min(int64(workers), memory/size))), size
}
