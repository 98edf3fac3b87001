package controlplane

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Retries is the backoff of a loop without a work queue. A is the input of an attempt: when it changes,
// the next attempt is due immediately.
type Retries[A comparable] struct {
	backoff workqueue.TypedRateLimiter[string]
	last    time.Duration
	next    map[string]retry[A]
}

type retry[A comparable] struct {
	with A
	at   time.Time
}

// NewRetries returns a backoff that starts at first and doubles up to last.
func NewRetries[A comparable](first, last time.Duration) Retries[A] {
	return Retries[A]{workqueue.NewTypedItemExponentialFailureRateLimiter[string](first, last), last, map[string]retry[A]{}}
}

// Wait reports whether it is too early for another attempt with the same input.
func (r Retries[A]) Wait(key string, with A, now time.Time) bool {
	one, there := r.next[key]
	if there && one.with != with {
		r.Forget(key)
		return false
	}
	return there && now.Before(one.at)
}

// Failed records that an attempt has failed, or has changed nothing.
func (r Retries[A]) Failed(key string, with A, now time.Time) {
	r.next[key] = retry[A]{with, now.Add(r.backoff.When(key))}
}

// Forget makes the next attempt due immediately.
func (r Retries[A]) Forget(key string) {
	r.backoff.Forget(key)
	delete(r.next, key)
}

// Prune removes keys that have not been retried for longer than the longest backoff.
func (r Retries[A]) Prune(now time.Time) {
	for key, one := range r.next {
		if now.Sub(one.at) > r.last {
			r.Forget(key)
		}
	}
}
