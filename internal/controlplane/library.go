package controlplane

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
	librarymetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"
)

const (
	// Resync is how often every claim and volume is processed even without a change.
	Resync = 15 * time.Minute
	// A failed item is retried after firstRetry, doubled up to lastRetry. Until refusalRetry has
	// passed, a retry of a Refusal only reads memory.
	firstRetry   = 500 * time.Millisecond
	lastRetry    = time.Minute
	refusalRetry = 5 * time.Minute
	// retrySpread is the maximum random share by which a delay is extended.
	retrySpread = 0.5
)

// Option is an option of the library's controller.
type Option = func(*controller.ProvisionController) error

// LibraryOptions returns the options that both provisioners share: the library never gives up on a
// claim, and does not take part in leader election, because the caller does.
func LibraryOptions(workers int, metrics librarymetrics.Metrics) []Option {
	return []Option{
		controller.LeaderElection(false),
		controller.MetricsInstance(metrics),
		controller.Threadiness(workers),
		controller.ResyncPeriod(Resync),
		controller.RateLimiter(RetryLimiter()),
		controller.FailedProvisionThreshold(0),
		controller.RetryIntervalMax(refusalRetry),
	}
}

// RetryLimiter returns the backoff between attempts at one item.
func RetryLimiter() workqueue.TypedRateLimiter[string] {
	return Jittered(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
}

// Jittered extends the delays of a limiter at random, so that items that failed together, for example
// while the API server was unavailable, are not retried together.
func Jittered[T comparable](of workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimiter[T] {
	return jittered[T]{of}
}

type jittered[T comparable] struct{ workqueue.TypedRateLimiter[T] }

func (j jittered[T]) When(item T) time.Duration {
	return wait.Jitter(j.TypedRateLimiter.When(item), retrySpread)
}

// WaitAtMost waits for group, but no longer than limit: a worker may hang on a server that does not
// respond.
func WaitAtMost(group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
