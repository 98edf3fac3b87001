package nodeagent

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A job is a volume that is to be removed.
type job struct {
	volume   inventory.Volume
	eviction *eviction.Eviction // nil where a removal that was begun earlier is finished
	// claimant is whose it was; nil where that is not known.
	claimant *corev1.ObjectReference
	// judged is the PersistentVolume of this node that has the volume's name, as the round that decided had it;
	// nil where there was none.
	judged *corev1.PersistentVolume
	told   *sync.Once
}

// orphan reports whether the job gives an orphan up.
func (j job) orphan() bool { return j.eviction != nil && j.eviction.Reason == eviction.ReasonOrphan }

// directory reports whether the volume is a directory of a pool, which LVM does not see.
func (j job) directory() bool { return j.volume.Layout == volume.Directory }

// A serialQueue does jobs that take long, one after the other, beside the rounds. What waits in
// it is what the last round has decided: every round puts its own list in the
// place of the one before, so that nothing is done on the strength of an old one.
type serialQueue[J any] struct {
	work func(context.Context, J)
	wake chan struct{}

	mu      sync.Mutex
	waiting []J
	busy    *J
}

func newSerialQueue[J any](work func(context.Context, J)) *serialQueue[J] {
	return &serialQueue[J]{work: work, wake: make(chan struct{}, 1)}
}

// run works until ctx ends, and returns when what it had begun has returned.
func (l *serialQueue[J]) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for {
			next, ok := l.take(ctx)
			if !ok {
				break
			}
			l.work(ctx, next)
			l.done()
		}
	}
}

func (l *serialQueue[J]) take(ctx context.Context) (next J, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil || len(l.waiting) == 0 {
		return next, false
	}
	next = l.waiting[0]
	l.waiting = l.waiting[1:]
	l.busy = &next
	return next, true
}

func (l *serialQueue[J]) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = nil
}

// set gives the queue a new list. What it is at now goes on.
func (l *serialQueue[J]) set(jobs []J) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = jobs
	if len(jobs) == 0 {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// at gives what the queue is at.
func (l *serialQueue[J]) at() (now J, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		return now, false
	}
	return *l.busy, true
}
