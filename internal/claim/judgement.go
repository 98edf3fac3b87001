package claim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Leaving tells whether a PersistentVolume is on its way out, whosever it is. One that a
// claim is bound to is not, whoever has deleted it and taken other finalizers off.
func (c *Claim) Leaving() bool {
	switch {
	case c.Deleting:
		return c.Phase != corev1.VolumeBound
	case c.Phase == corev1.VolumeReleased || c.Phase == corev1.VolumeFailed:
		return c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	}
	return false
}

// Evidence says how the API has given a claim up.
func (c *Claim) Evidence() string {
	switch {
	case c.Deleting:
		return fmt.Sprintf("PersistentVolume %s was deleted and no claim is bound to it", c.PV)
	case c.Phase == corev1.VolumeFailed:
		return fmt.Sprintf("PersistentVolume %s has failed to be reclaimed after %s had gone", c.PV, c.User())
	}
	return fmt.Sprintf("PersistentVolume %s was released: %s is gone", c.PV, c.User())
}

// User is who asked for the volume.
func (c *Claim) User() string {
	if c.ClaimName == "" {
		return "its claim"
	}
	return fmt.Sprintf("claim %s/%s", c.ClaimNamespace, c.ClaimName)
}

// Usable tells whether a pod may come and mount the volume of a claim.
func (c *Claim) Usable() bool {
	return c.Phase == corev1.VolumePending || c.Phase == corev1.VolumeAvailable || c.Phase == corev1.VolumeBound
}

// A Charge is what a claim takes of its pool, whatever the size of the pool's
// extents.
type Charge struct {
	Noted  volume.Bytes // for extents of LVM's default size, as the provisioner has noted it
	Shape  volume.Shape
	Device volume.Bytes // the logical volume's size
}

// Charge of a claim that has no volume yet.
func (c *Claim) Charge() Charge {
	return Charge{Noted: c.Charged, Shape: c.Shape, Device: volume.DeviceSize(c.Size, c.Inodes)}
}

// In is the charge in a pool with extents of this size: larger ones cost more, and
// that on each device.
func (c Charge) In(extent volume.Bytes) volume.Bytes {
	extent = max(extent, 1)
	more := c.Shape.Takes(c.Device, extent) - c.Shape.Takes(c.Device, volume.DefaultExtent).RoundUp(extent)
	return c.Noted.RoundUp(extent) + max(0, more)
}
