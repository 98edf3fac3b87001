package discovery

import (
	"context"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/pause"
)

// checkEvery is how often a cleaning checks whether somebody uses what it cleans.
const checkEvery = time.Second

// A rateLimiter limits how much all its users together do per second.
type rateLimiter struct {
	mu   sync.Mutex
	rate int64
	next time.Time
}

// newRateLimiter returns a rateLimiter of rate per second; 0: no limit.
func newRateLimiter(rate int64) *rateLimiter { return &rateLimiter{rate: rate} }

// wait waits until n more may be done.
func (l *rateLimiter) wait(ctx context.Context, n int64) error {
	if l.rate <= 0 {
		return ctx.Err()
	}
	l.mu.Lock()
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	wait := l.next.Sub(now)
	l.next = l.next.Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
	l.mu.Unlock()
	if wait < time.Millisecond {
		return ctx.Err() // timers are coarser
	}
	return pause.For(ctx, wait)
}

// A throttle limits how often a check runs.
type throttle struct{ checked time.Time }

// due reports, once in checkEvery, that the check must run.
func (t *throttle) due() bool {
	now := time.Now()
	if now.Sub(t.checked) < checkEvery {
		return false
	}
	t.checked = now
	return true
}
