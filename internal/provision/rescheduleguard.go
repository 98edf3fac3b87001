package provision

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// rescheduleGuard records the claims whose node was removed, so that the scheduler chooses another. The
// library (v13.0.0, rescheduleProvisioning) sends that update to the API server, and on the response
// writes the sent object into its cache of claims. If the response was slow, the scheduler may already
// have chosen a node, which the cache shows. The library's write would hide it, and without another
// change the claim would wait forever. So that write does not reach the cache; instead the guard
// records which state of the claim is outdated and must not be served.
type rescheduleGuard struct {
	mu     sync.Mutex
	states map[types.UID]string // resourceVersions
}

func newRescheduleGuard() *rescheduleGuard { return &rescheduleGuard{states: map[types.UID]string{}} }

// note records that a claim in this state was returned to the scheduler.
func (g *rescheduleGuard) note(claim *corev1.PersistentVolumeClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.states[claim.UID] = claim.ResourceVersion
}

// outdated reports whether the claim is in a state from before it was returned: the cache will show the
// new state soon.
func (g *rescheduleGuard) outdated(claim *corev1.PersistentVolumeClaim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	state, noted := g.states[claim.UID]
	if noted && state != claim.ResourceVersion {
		delete(g.states, claim.UID)
		return false
	}
	return noted
}

func (g *rescheduleGuard) forget(claim *corev1.PersistentVolumeClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.states, claim.UID)
}

// claims wraps the informer of claims for the provisioning library, so that the library's writes go to
// g instead of the cache.
func (g *rescheduleGuard) claims(informer cache.SharedIndexInformer) (cache.SharedIndexInformer, error) {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if last, unseen := obj.(cache.DeletedFinalStateUnknown); unseen {
			obj = last.Obj
		}
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			g.forget(claim)
		}
	}})
	return guardedClaims{informer, g}, err
}

type guardedClaims struct {
	cache.SharedIndexInformer
	rescheduled *rescheduleGuard
}

// GetStore returns the store that the library writes to; it reads from GetIndexer.
func (c guardedClaims) GetStore() cache.Store {
	return guardedStore{c.SharedIndexInformer.GetStore(), c.rescheduled}
}

type guardedStore struct {
	cache.Store
	rescheduled *rescheduleGuard
}

// Update records a claim that the library has returned to the scheduler, with the resourceVersion of
// the state in which the claim still had its node.
func (s guardedStore) Update(obj any) error {
	s.rescheduled.note(obj.(*corev1.PersistentVolumeClaim))
	return nil
}
