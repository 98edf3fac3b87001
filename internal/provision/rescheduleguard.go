package provision

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// rescheduleGuard are the claims whose node was taken away, so that the scheduler names
// another. The library (v13.0.0, rescheduleProvisioning) sends that to the API server,
// and when the answer comes it writes what it sent into its cache of claims. If the
// answer was slow, the scheduler has named a node by then, and the cache holds it. The
// library's write would hide it, and as nothing changes any more the claim would wait
// for ever. So that write does not reach the cache; it tells which state of the claim
// is out of date, and must not be served.
type rescheduleGuard struct {
	mu     sync.Mutex
	states map[types.UID]string // resource versions
}

func newRescheduleGuard() *rescheduleGuard { return &rescheduleGuard{states: map[types.UID]string{}} }

// note remembers that a claim in this state was given back.
func (g *rescheduleGuard) note(claim *corev1.PersistentVolumeClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.states[claim.UID] = claim.ResourceVersion
}

// outdated reports whether the claim is as it was before it was given back: its new
// state is on its way.
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

// claims wraps the informer of claims for the provisioning library: a write of the library goes to g
// and not into the cache.
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
	given *rescheduleGuard
}

// GetStore returns the store that the library writes to; it reads from GetIndexer.
func (c guardedClaims) GetStore() cache.Store {
	return guardedStore{c.SharedIndexInformer.GetStore(), c.given}
}

type guardedStore struct {
	cache.Store
	given *rescheduleGuard
}

// Update notes a claim that the library gave back, with the resource version of the state in which the
// claim still had its node.
func (s guardedStore) Update(obj any) error {
	s.given.note(obj.(*corev1.PersistentVolumeClaim))
	return nil
}
