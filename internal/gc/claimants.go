package gc

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/node"
)

// claimants remember whose claim a volume was that this process has released. The
// volume's tags do not say it, and the claim should hear what became of it if it
// is still there.
type claimants struct {
	mu     sync.Mutex
	byUUID map[string]corev1.ObjectReference
}

func newClaimants() *claimants { return &claimants{byUUID: map[string]corev1.ObjectReference{}} }

func (c *claimants) note(in node.Inventory, claim Claim, ref *corev1.ObjectReference) {
	if ref == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range in.Volumes {
		if keyOf(&in.Volumes[i]) == keyOfClaim(&claim) {
			c.byUUID[in.Volumes[i].UUID] = *ref
		}
	}
}

func (c *claimants) of(uuid string) (corev1.ObjectReference, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ref, there := c.byUUID[uuid]
	return ref, there
}

func (c *claimants) keep(there map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uuid := range c.byUUID {
		if !there[uuid] {
			delete(c.byUUID, uuid)
		}
	}
}
