package staticvolume

import (
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// refused says why a PersistentVolume cannot be made until a person changes something. Any other error is returned.
func (c *Controller) refused(declared *flexlvmv1.VolumeDiscovery, node *corev1.Node, found *flexlvmv1.Discovered, err error) error {
	if !controlplane.Denied(err) && !errors.Is(err, errNoHostname) {
		return err
	}
	c.tell(declared, "PersistentVolumeRefused", fmt.Sprintf("%s of node %s gets no PersistentVolume: %v; it is tried again within five minutes", found.Path, node.Name, err))
	return nil
}

// A warning is what an event is about: of the same one there is one event in tellAgain.
type warning struct{ reason, about string }

// tell warns once in a while of the same message.
func (c *Controller) tell(declared *flexlvmv1.VolumeDiscovery, reason, message string) {
	c.tellOf(declared, warning{reason, message}, message)
}

// tellOf warns once in a while of the same thing, whatever the message says.
func (c *Controller) tellOf(declared *flexlvmv1.VolumeDiscovery, what warning, message string) {
	if _, told := c.told[what]; told {
		return
	}
	c.told[what] = c.Now()
	c.Events.Event(&corev1.ObjectReference{
		APIVersion: flexlvmv1.GroupVersion.String(), Kind: "VolumeDiscovery", Name: declared.Name, UID: declared.UID,
	}, corev1.EventTypeWarning, what.reason, message)
}

// pruneTold removes the warnings of which there may be an event again.
func (c *Controller) pruneTold() {
	now := c.Now()
	maps.DeleteFunc(c.told, func(_ warning, at time.Time) bool { return now.Sub(at) >= tellAgain })
}
