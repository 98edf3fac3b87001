package serve

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/kube"
)

// byAPIServer returns a review that asks the API server of config whether a token may read metrics.
func byAPIServer(config *rest.Config) (review, error) {
	reviewer, err := kube.NewReviewer(config)
	if err != nil {
		return nil, err
	}
	var said atMost
	return func(ctx context.Context, token string) error {
		known, allowed, err := reviewer.MayGet(ctx, token, "/metrics")
		if err != nil && said.now(time.Minute) {
			klog.FromContext(ctx).Error(err, "Cannot find out who may read metrics, so nobody new may; does the service account have the ClusterRole system:auth-delegator?")
		}
		switch {
		case err != nil:
			return err
		case !known:
			return errUnknown
		case !allowed:
			return errForbidden
		}
		return nil
	}, nil
}

// atMost limits how often a message is logged, because clients without access decide how often there is
// a reason for it.
type atMost struct {
	mu   sync.Mutex
	last time.Time
}

func (a *atMost) now(every time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.last) < every {
		return false
	}
	a.last = time.Now()
	return true
}
