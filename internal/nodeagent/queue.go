package nodeagent

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A job is a volume to be removed.
type job struct {
	volume   inventory.Volume
	eviction *eviction.Eviction // nil if the job finishes an earlier removal
	// claimant is the claim that the volume had; nil if unknown.
	claimant *corev1.ObjectReference
	// judged is the PersistentVolume of this node with the volume's name, as of the deciding round; nil if
	// there was none.
	judged    *corev1.PersistentVolume
	announced *sync.Once
}

// orphan reports whether the job evicts an orphan.
func (j job) orphan() bool { return j.eviction != nil && j.eviction.Reason == eviction.ReasonOrphan }

// directory reports whether the volume is a directory of a pool, which LVM does not know.
func (j job) directory() bool { return j.volume.Layout == volume.Directory }

// A serialQueue does long jobs one after the other, concurrently with the rounds. The waiting jobs are the last
// round's decisions: every round replaces them, so that no older decision is carried out.
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

// run works until ctx ends, and returns when the current job has returned.
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

// set replaces the waiting jobs. The current one goes on.
func (l *serialQueue[J]) set(jobs []J) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = jobs
	if len(jobs) > 0 {
		notify(l.wake)
	}
}

// at returns the current job, if there is one.
func (l *serialQueue[J]) at() (now J, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		return now, false
	}
	return *l.busy, true
}
