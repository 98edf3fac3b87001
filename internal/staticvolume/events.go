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

// refused sends an event if a PersistentVolume cannot be created until a person changes something. It returns
// any other error.
func (c *Controller) refused(declared *flexlvmv1.VolumeDiscovery, node *corev1.Node, found *flexlvmv1.Discovered, err error) error {
	if !controlplane.Denied(err) && !errors.Is(err, errNoHostname) {
		return err
	}
	c.tell(declared, "PersistentVolumeRefused", fmt.Sprintf("%s of node %s gets no PersistentVolume: %v; it is retried within five minutes", found.Path, node.Name, err))
	return nil
}

// A warning identifies an event, which is sent at most once per tellAgain.
type warning struct{ reason, about string }

// tell sends a warning event, at most once per tellAgain for the same message.
func (c *Controller) tell(declared *flexlvmv1.VolumeDiscovery, reason, message string) {
	c.tellOf(declared, warning{reason, message}, message)
}

// tellOf sends a warning event, at most once per tellAgain for the same warning, even if the message differs.
func (c *Controller) tellOf(declared *flexlvmv1.VolumeDiscovery, what warning, message string) {
	if _, told := c.told[what]; told {
		return
	}
	c.told[what] = c.Now()
	c.Events.Event(&corev1.ObjectReference{
		APIVersion: flexlvmv1.GroupVersion.String(), Kind: "VolumeDiscovery", Name: declared.Name, UID: declared.UID,
	}, corev1.EventTypeWarning, what.reason, message)
}

// pruneTold forgets the warnings that may be sent again.
func (c *Controller) pruneTold() {
	now := c.Now()
	maps.DeleteFunc(c.told, func(_ warning, at time.Time) bool { return now.Sub(at) >= tellAgain })
}
