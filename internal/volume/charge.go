package volume

import "sort"

// MaxCharge is an upper bound on the space any volume takes from its group: the largest volume and
// its overhead, in as many copies as possible.
const MaxCharge = 2 * MaxSize * (maxMirrors + 1)

// Charge returns the space that a volume of this spec takes from its group, which is charged to its
// pool. In a group with extents larger than LVM's default the volume takes more (ChargeIn).
func (s Spec) Charge() Bytes { return s.ChargeIn(DefaultExtent) }

// Header returns the size of what precedes the file system, or a Raw volume's content, on the
// device.
func (s Spec) Header() Bytes {
	if s.Encrypted {
		return LUKSHeader
	}
	return 0
}

// DeviceSize returns the size of the logical volume of a volume of this spec. For a copy-on-write
// snapshot it is the size of the store.
func (s Spec) DeviceSize() Bytes {
	if s.CopyOnWrite() {
		size, _ := COWStore(s.ContentSize(), DefaultExtent, s.Reserve)
		return size
	}
	return s.ContentSize()
}

// ContentSize returns the size of the device that holds the file system: for a copy-on-write
// snapshot, that of its source.
func (s Spec) ContentSize() Bytes {
	if s.Layout == Directory {
		return DirectorySize(s.Size, s.Inodes)
	}
	switch s.FSType {
	case Ext4:
		return s.Header() + ext4DeviceSize(s.Size)
	case Raw:
		return s.Header() + s.Size.RoundUp(DefaultExtent)
	}
	return s.Header() + XFSDeviceSize(s.Size, s.Inodes)
}

// ChargeIn is Charge in a group with extents of this size.
func (s Spec) ChargeIn(extent Bytes) Bytes {
	return s.Shape().Takes(s.DeviceSize(), extent)
}

// HeldBy returns the largest size, in whole blocks, that a volume of this spec may have on a
// logical volume of this size, or 0 if none fits.
func (s Spec) HeldBy(device Bytes) Bytes {
	tooMany := sort.Search(int(MaxSize/Block), func(i int) bool {
		s.Size = Bytes(i+1) * Block
		return s.DeviceSize() > device
	})
	return Bytes(tooMany) * Block
}

// Devices returns how many distinct physical devices of its group a volume of this spec
// needs.
func (s Spec) Devices() int { return s.Shape().Devices() }

// Fits reports whether a group has room for a volume of this spec. free holds the free
// bytes of each physical device of the group; extent is its extent size. It errs on the
// safe side, see Shape.Holds.
func Fits(free []Bytes, spec Spec, extent Bytes) bool {
	return spec.Shape().Holds(free, spec.DeviceSize(), extent)
}

// Largest returns the largest size, in whole blocks, that a volume of this spec could
// have in such a group, whatever size the spec itself asks for; 0 if none fits.
func Largest(free []Bytes, spec Spec, extent Bytes) Bytes {
	tooMany := sort.Search(int(MaxSize/Block), func(i int) bool {
		spec.Size = Bytes(i+1) * Block
		return !Fits(free, spec, extent)
	})
	return Bytes(tooMany) * Block
}

// ThinStep returns the granularity at which a node reports the free space of a thin pool of this
// size.
func ThinStep(pool Bytes) Bytes { return (pool/1000/MiB + 1) * MiB }
