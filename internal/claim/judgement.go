package claim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Leaving tells whether a PersistentVolume is on its way out, whosever it is.
func (c *Claim) Leaving() bool {
	switch {
	case c.Deleting:
		return c.Phase != corev1.VolumeBound || !c.Protected
	case c.Phase == corev1.VolumeReleased || c.Phase == corev1.VolumeFailed:
		return c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	}
	return false
}

// Evidence says how the API has given a claim up.
func (c *Claim) Evidence() string {
	switch {
	case c.Deleting && c.Phase == corev1.VolumeBound:
		return fmt.Sprintf("PersistentVolume %s was deleted and nothing protects it any more, although %s is bound to it", c.PV, c.User())
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
