package persistentvolume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// BeingRemoved reports whether a PersistentVolume, of any cluster, is being removed. A bound one is not,
// even if somebody has deleted it and removed its other finalizers.
func (v *Volume) BeingRemoved() bool {
	switch {
	case v.Deleting:
		return v.Phase != corev1.VolumeBound
	case v.Phase == corev1.VolumeReleased || v.Phase == corev1.VolumeFailed:
		return v.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	}
	return false
}

// Evidence describes how the API shows that the volume is no longer wanted.
func (v *Volume) Evidence() string {
	switch {
	case v.Deleting:
		return fmt.Sprintf("PersistentVolume %s was deleted and no claim is bound to it", v.PV)
	case v.Phase == corev1.VolumeFailed:
		return fmt.Sprintf("PersistentVolume %s has failed to be reclaimed after %s had gone", v.PV, v.User())
	}
	return fmt.Sprintf("PersistentVolume %s was released: %s is gone", v.PV, v.User())
}

// User describes the claim that asked for the volume.
func (v *Volume) User() string {
	if v.ClaimName == "" {
		return "its claim"
	}
	return fmt.Sprintf("claim %s/%s", v.ClaimNamespace, v.ClaimName)
}

// Usable reports whether a pod may still mount the volume.
func (v *Volume) Usable() bool {
	return v.Phase == corev1.VolumePending || v.Phase == corev1.VolumeAvailable || v.Phase == corev1.VolumeBound
}

// A Charge is what a volume takes from its pool, for any extent size.
type Charge struct {
	Noted  volume.Bytes // for extents of LVM's default size, as the provisioner recorded it
	Shape  volume.Shape
	Device volume.Bytes // the logical volume's size
	// Content is, for a copy-on-write snapshot, the size of its source's device, and Reserve is the
	// share of that which the store reserves.
	Content volume.Bytes
	Reserve volume.Reserve
}

// ChargeOf returns the charge of a volume with this spec and this recorded charge.
func ChargeOf(s volume.Spec, noted volume.Bytes) Charge {
	c := Charge{Noted: noted, Shape: s.Shape(), Device: s.DeviceSize()}
	if s.CopyOnWrite() {
		c.Content, c.Reserve = s.ContentSize(), s.Reserve
	}
	return c
}

// specOf returns the fields that determine the device size of a volume of this size.
func (v *Volume) specOf(size volume.Bytes) volume.Spec {
	return volume.Spec{
		Size: size, Inodes: v.Inodes, FSType: v.FSType, Encrypted: v.Encrypted, Kind: v.Kind, Layout: v.Shape.Layout, Reserve: v.Reserve,
	}
}

// DeviceSize returns the size of the logical volume that holds this volume at the given size.
func (v *Volume) DeviceSize(size volume.Bytes) volume.Bytes { return v.specOf(size).DeviceSize() }

// ContentSize returns the size of the device whose content a copy-on-write snapshot holds.
func (v *Volume) ContentSize() volume.Bytes { return v.specOf(v.Size).ContentSize() }

// CopyOnWrite reports whether the volume is a snapshot with a store of its own.
func (v *Volume) CopyOnWrite() bool {
	return volume.Spec{Kind: v.Kind, Layout: v.Shape.Layout}.CopyOnWrite()
}

// Promised returns the volume's size, or the size that it is promised to grow to.
func (v *Volume) Promised() volume.Bytes { return max(v.Size, v.Growing) }

// Grown returns the volume with this size and without a promise.
func (v Volume) Grown(size volume.Bytes) Volume {
	v.Growing = 0
	if size > v.Size {
		v.Size = size
		v.Charged = max(v.Charged, v.Shape.Takes(v.DeviceSize(size), volume.DefaultExtent))
	}
	return v
}

// Charge returns the charge of a volume that does not exist yet, including promised growth.
func (v *Volume) Charge() Charge {
	whole := v.Grown(v.Promised())
	c := ChargeOf(v.specOf(whole.Size), whole.Charged)
	c.Shape = v.Shape
	return c
}

// In returns the charge in a pool with this extent size: larger extents cost more, on each device. A
// copy-on-write store must suit its source's device there, which is larger as well.
func (c Charge) In(extent volume.Bytes) volume.Bytes {
	extent = max(extent, 1)
	if c.Content > 0 {
		store, _ := volume.COWStore(c.Content.RoundUp(extent), extent, c.Reserve)
		return max(c.Noted.RoundUp(extent), store)
	}
	more := c.Shape.Takes(c.Device, extent) - c.Shape.Takes(c.Device, volume.DefaultExtent).RoundUp(extent)
	return c.Noted.RoundUp(extent) + max(0, more)
}
