package nodeagent

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// releasedClaims remember whose claim a volume was that this process has released. The
// volume's tags do not say it, and the claim should hear what became of it if it
// is still there.
type releasedClaims struct {
	mu     sync.Mutex
	byUUID map[string]corev1.ObjectReference
}

func newReleasedClaims() *releasedClaims {
	return &releasedClaims{byUUID: map[string]corev1.ObjectReference{}}
}

func (c *releasedClaims) note(in inventory.Inventory, claim persistentvolume.Volume, ref *corev1.ObjectReference) {
	if ref == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range in.Volumes {
		if eviction.KeyOf(&in.Volumes[i]) == eviction.KeyOfPersistentVolume(&claim) {
			c.byUUID[in.Volumes[i].UUID] = *ref
		}
	}
}

func (c *releasedClaims) of(uuid string) (corev1.ObjectReference, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ref, there := c.byUUID[uuid]
	return ref, there
}

func (c *releasedClaims) keep(there map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uuid := range c.byUUID {
		if !there[uuid] {
			delete(c.byUUID, uuid)
		}
	}
}
