package discovery

import (
	"context"
	"sync"
	"time"
)

// watchEvery is how often a cleaning checks whether somebody uses what it cleans.
const watchEvery = time.Second

// A Pace limits how much all its users together do per second.
type Pace struct {
	mu   sync.Mutex
	rate int64
	next time.Time
}

// NewPace returns a pace of rate per second; 0: no limit.
func NewPace(rate int64) *Pace { return &Pace{rate: rate} }

// Wait waits until n more may be done.
func (p *Pace) Wait(ctx context.Context, n int64) error {
	if p.rate <= 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	p.mu.Unlock()
	if wait < time.Millisecond {
		return ctx.Err() // timers are coarser
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// A watchman limits how often a check runs.
type watchman struct{ looked time.Time }

// due reports, once in watchEvery, that the check must run.
func (w *watchman) due() bool {
	now := time.Now()
	if now.Sub(w.looked) < watchEvery {
		return false
	}
	w.looked = now
	return true
}
