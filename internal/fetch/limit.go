package fetch

import (
	"context"
	"sync"
	"time"
)

// bandwidth bounds the bytes a second that all workers take together.
type bandwidth struct {
	perSecond int64 // 0: no bound

	mu sync.Mutex
	// free is when all that was promised so far will have been paid for.
	free time.Time
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
	return wait(ctx, due)
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

// width is how many requests to have open at once where nobody said: a few large
// ones fill a link, and small ones spend their time waiting for the first byte.
func width(parallel, files int, bytes int64) int {
	switch {
	case parallel > 0:
		return parallel
	case files == 0:
		return 1
	case bytes/int64(files) >= 8*mib:
		return 8
	}
	return 32
}

// Bounds of a worker's buffer in bytes.
const (
	leastBuffer = 64 * kib
	mostBuffer  = mib
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
