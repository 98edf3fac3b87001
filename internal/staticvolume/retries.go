package staticvolume

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// retries are when to try again to make the PersistentVolumes that were not made, by their names.
type retries struct {
	backoff workqueue.TypedRateLimiter[string]
	next    map[string]retry
}

type retry struct {
	attempt
	at time.Time
}

// An attempt is what it was made of: where that changes, it is tried at once.
type attempt struct {
	declared string // version of the VolumeDiscovery
	found    flexlvmv1.Discovered
}

func newRetries() retries {
	return retries{workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMost), map[string]retry{}}
}

// waits reports whether it is too early to try the same again.
func (r retries) waits(name string, a attempt, now time.Time) bool {
	last, there := r.next[name]
	if !there {
		return false
	}
	if !equality.Semantic.DeepEqual(last.found, a.found) || last.declared != a.declared {
		r.forget(name)
		return false
	}
	return now.Before(last.at)
}

// later records an attempt that has made nothing.
func (r retries) later(name string, a attempt, now time.Time) {
	r.next[name] = retry{a, now.Add(r.backoff.When(name))}
}

func (r retries) forget(name string) {
	r.backoff.Forget(name)
	delete(r.next, name)
}

// prune forgets what is not asked for any more.
func (r retries) prune(now time.Time) {
	for name, last := range r.next {
		if now.Sub(last.at) > retryMost {
			r.forget(name)
		}
	}
}
