package nodeagent

import (
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/node"
)

// A retry is a failed operation that is retried later.
type retry struct {
	since time.Time // of the first failure
	until time.Time
	delay time.Duration
	times int
	why   string
}

// backoff holds the retries by the UID of a volume or a PersistentVolume. The delay starts at initial, doubles
// with each failure up to maxDelay, and has jitter. A backoff may be used from several goroutines.
type backoff struct {
	initial, maxDelay time.Duration

	mu   sync.Mutex
	byID map[string]retry
}

func newBackoff(initial, maxDelay time.Duration) *backoff {
	return &backoff{initial: initial, maxDelay: maxDelay, byID: map[string]retry{}}
}

// add records a failed attempt, or one that has changed nothing.
func (b *backoff) add(id string, now time.Time, why string) retry {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, failed := b.byID[id]
	if !failed {
		r.since = now
	}
	r.delay = min(max(2*r.delay, b.initial), b.maxDelay)
	r.until = now.Add(wait.Jitter(r.delay, spread))
	r.times++
	r.why = why
	b.byID[id] = r
	return r
}

// isTransient reports whether a failure is transient and need not be reported: another writer has changed the
// object, or, and not for long, another call holds the volume, or the volume was removed after the round's
// inventory, so that the next round judges it.
func (b *backoff) isTransient(err error, r retry) bool {
	mayPass := errors.Is(err, node.ErrBusy) || errors.Is(err, node.ErrNoVolume)
	return apierrors.IsConflict(err) || mayPass && r.delay < b.maxDelay
}

func (b *backoff) clear(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byID, id)
}

// waits reports whether the delay of a retry has not passed yet.
func (b *backoff) waits(id string, now time.Time) bool {
	r, failed := b.get(id)
	return failed && now.Before(r.until)
}

// has reports whether id has failed, even if its delay has passed.
func (b *backoff) has(id string) bool {
	_, there := b.get(id)
	return there
}

// get returns the retry of id, including one whose delay has passed, and whether there is one.
func (b *backoff) get(id string) (retry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, there := b.byID[id]
	return r, there
}

// times returns how often id has failed.
func (b *backoff) times(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[id].times
}

// due returns when id may be tried again; zero if it has not failed.
func (b *backoff) due(id string) time.Time {
	r, _ := b.get(id)
	return r.until
}

// all returns the UIDs that have failed.
func (b *backoff) all() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]bool, len(b.byID))
	for id := range b.byID {
		out[id] = true
	}
	return out
}

// keepOnly drops the UIDs that are not in there.
func (b *backoff) keepOnly(there map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.byID {
		if !there[id] {
			delete(b.byID, id)
		}
	}
}

// next returns when the next waiting retry is due; zero if there is none.
func (b *backoff) next(now time.Time) (first time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.byID {
		if r.until.After(now) && (first.IsZero() || r.until.Before(first)) {
			first = r.until
		}
	}
	return first
}

// next returns the time until the next round if nothing changes: after the interval, or earlier when a retry is
// due, when a volume becomes old enough to be evicted, or when pods have had their time to start.
func (d *Daemon) next(f observation) time.Duration {
	now := d.cfg.Now()
	next := wait.Jitter(d.cfg.Interval, spread)
	for _, s := range []*backoff{d.removalRetries, d.unanswered, d.keptElsewhere, d.keptCheckRetries, d.releaseRetries, d.createRetries, d.undeleteRetries, d.stepRetries, d.usedReplicas, d.chargeRetries} {
		if at := s.next(now); !at.IsZero() {
			next = min(next, at.Sub(now))
		}
	}
	if at := eviction.NextOfAge(f.view, d.cfg.Policy.MinAge); !at.IsZero() {
		next = min(next, at.Sub(now))
	}
	if f.result.Postponed {
		next = min(next, f.view.StartsUntil.Sub(now))
	}
	for _, since := range d.unlabelled {
		if at := since.Add(grace); at.After(now) {
			next = min(next, at.Sub(now))
		}
	}
	return max(next, settle)
}
