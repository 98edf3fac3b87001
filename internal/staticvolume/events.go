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

// reportRefusal sends an event if a PersistentVolume cannot be created until a person changes something. It returns
// any other error.
func (c *Controller) reportRefusal(discovery *flexlvmv1.VolumeDiscovery, node *corev1.Node, found *flexlvmv1.Discovered, err error) error {
	if !controlplane.Denied(err) && !errors.Is(err, errNoHostname) {
		return err
	}
	c.warn(discovery, "PersistentVolumeRefused", fmt.Sprintf("%s of node %s gets no PersistentVolume: %v; it is retried within five minutes", found.Path, node.Name, err))
	return nil
}

// A warning identifies an event, which is sent at most once per warnEvery.
type warning struct{ reason, about string }

// warn sends a warning event, at most once per warnEvery for the same message.
func (c *Controller) warn(discovery *flexlvmv1.VolumeDiscovery, reason, message string) {
	c.warnKeyed(discovery, warning{reason, message}, message)
}

// warnKeyed sends a warning event, at most once per warnEvery for the same warning, even if the message differs.
func (c *Controller) warnKeyed(discovery *flexlvmv1.VolumeDiscovery, key warning, message string) {
	if _, warned := c.warned[key]; warned {
		return
	}
	c.warned[key] = c.Now()
	c.Events.Event(&corev1.ObjectReference{
		APIVersion: flexlvmv1.GroupVersion.String(), Kind: "VolumeDiscovery", Name: discovery.Name, UID: discovery.UID,
	}, corev1.EventTypeWarning, key.reason, message)
}

// pruneWarned forgets the warnings that may be sent again.
func (c *Controller) pruneWarned() {
	now := c.Now()
	maps.DeleteFunc(c.warned, func(_ warning, at time.Time) bool { return now.Sub(at) >= warnEvery })
}
