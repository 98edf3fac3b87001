package staticvolume

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// refused sends an event if a PersistentVolume cannot be created until a person changes something. It returns
// any other error.
func (c *Controller) refused(declared *flexlvmv1.VolumeDiscovery, node *corev1.Node, found *flexlvmv1.Discovered, err error) error {
	if !controlplane.Denied(err) && !errors.Is(err, errNoHostname) {
		return err
	}
	c.tell(declared, "PersistentVolumeRefused", fmt.Sprintf("%s of node %s gets no PersistentVolume: %v; it is tried again within five minutes", found.Path, node.Name, err))
	return nil
}
