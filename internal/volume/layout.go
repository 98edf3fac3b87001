package volume

import "math/bits"

// Layout is how a volume is laid out on its pool's devices.
type Layout string

// The supported layouts.
const (
	// Linear volumes are placed wherever the group has room.
	Linear Layout = "linear"
	// Striped volumes are spread over several devices, one stripe on each in turn.
	Striped Layout = "striped"
	// Raid1 volumes have a full copy on each of several devices.
	Raid1 Layout = "raid1"
	// Thin volumes take space from a thin pool only as they are written.
	Thin Layout = "thin"
	// Directory volumes are directories of one shared XFS, each with a quota.
	Directory Layout = "directory"
)

// ParseLayout checks a layout; empty means Linear. The error is a *FieldError.
func ParseLayout(field, s string) (Layout, error) {
	switch l := Layout(s); l {
	case "":
		return Linear, nil
	case Linear, Striped, Raid1, Thin, Directory:
		return l, nil
	}
	return "", invalid(field, s, "is not a layout; it is one of linear, striped, raid1, thin, directory")
}

// Defaults of the layouts' options.
const (
	DefaultStripes   = 2
	DefaultStripeKiB = 64 // LVM's own
	DefaultMirrors   = 1
)

// LVM's limits: at most 128 stripes (lvcreate(8)) and ten copies in total (lvmraid(7)); a stripe
// size is a power of two of at least 4 KiB and at most an extent.
const (
	maxStripes   = 128
	minStripeKiB = 4
	maxStripeKiB = int(DefaultExtent / KiB)
	maxMirrors   = 9
)

// ParseStripes parses the number of devices that a volume is striped over. The error is a
// *FieldError.
func ParseStripes(field, s string) (int, error) {
	n, err := parseCount(field, s, maxStripes)
	if err == nil && n < 2 {
		return 0, invalid(field, s, "is less than 2, the fewest devices that a volume can be striped over; use layout %q", Linear)
	}
	return int(n), err
}

// ParseStripeKiB parses a stripe size in KiB. The error is a *FieldError.
func ParseStripeKiB(field, s string) (int, error) {
	n, err := parseCount(field, s, int64(maxStripeKiB))
	if err == nil && (n < minStripeKiB || bits.OnesCount64(uint64(n)) != 1) {
		return 0, invalid(field, s, "is not a power of two from %d to %d", minStripeKiB, maxStripeKiB)
	}
	return int(n), err
}

// ParseMirrors parses the number of copies that a volume has besides the first. The error
// is a *FieldError.
func ParseMirrors(field, s string) (int, error) {
	n, err := parseCount(field, s, maxMirrors)
	return int(n), err
}

// A Shape is a layout with its numbers; the numbers of other layouts are 0. It comes only from
// Spec.Shape or LVM's reports, so the defaults are already filled in.
type Shape struct {
	Layout    Layout `json:"layout,omitempty"`
	Stripes   int    `json:"stripes,omitempty"`
	StripeKiB int    `json:"stripeSizeKiB,omitempty"`
	Mirrors   int    `json:"mirrors,omitempty"`
	ThinPool  Name   `json:"thinPool,omitempty"`
	// DirectoryPool is the pool of a directory volume.
	DirectoryPool Name `json:"directoryPool,omitempty"`
	// Ratio is how far the pool of a thin volume may be overcommitted. LVM does not record it.
	Ratio Ratio `json:"-"`
}

// Shape returns the layout of s with the defaults filled in.
func (s Spec) Shape() Shape {
	out := Shape{Layout: s.Layout, Stripes: s.Stripes, StripeKiB: s.StripeKiB, Mirrors: s.Mirrors}
	switch s.Layout {
	case Striped:
		out.Stripes = or(out.Stripes, DefaultStripes)
		out.StripeKiB = or(out.StripeKiB, DefaultStripeKiB)
	case Raid1:
		out.Mirrors = or(out.Mirrors, DefaultMirrors)
	case Thin:
		out.ThinPool, out.Ratio = s.ThinPool, s.Ratio
	case Directory:
		out.DirectoryPool = s.DirectoryPool
	}
	return out
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

func (s Spec) validateLayout() error {
	switch s.Layout {
	case Linear, Striped, Raid1, Thin, Directory:
	default:
		return invalid(OptionLayout, string(s.Layout), "is not a layout; it is one of linear, striped, raid1, thin, directory")
	}
	for _, o := range options {
		if text := o.print(&s); text != "" && !o.of(s.Layout) {
			return o.foreign(text, s.Layout)
		}
	}
	switch {
	case s.Layout == Thin && s.ThinPool == "":
		return invalid(OptionThinPool, "", "is required with layout %s: name the thin pool that volumes are made in", Thin)
	case s.Layout == Thin && s.ThinPool == s.Name:
		return invalid(OptionThinPool, string(s.ThinPool), "is the name of the volume itself")
	case s.CloneOf != "" && (s.CloneOf == s.Name || s.CloneOf == s.ThinPool):
		return invalid(OptionCloneOf, string(s.CloneOf), "is the name of the volume itself, or of its thin pool")
	case s.CloneOf != "" && s.Kind == Dataset:
		return invalid(OptionCloneOf, string(s.CloneOf), "is given and the kind is %s; a replica is filled from its source", Dataset)
	case s.Layout == Thin:
		return checkDeviceName(OptionThinPool, s.Group, s.ThinPool, Thin)
	case s.Layout == Directory:
		return s.validateDirectory()
	}
	return nil
}

// Devices returns how many distinct physical devices a volume of this shape needs.
func (h Shape) Devices() int {
	switch h.Layout {
	case Striped:
		return h.Stripes
	case Raid1:
		return h.Mirrors + 1
	}
	return 1
}

// RoundUp rounds the size of a logical volume up as LVM does: to whole extents and, if the volume
// is striped, to equally many on every device. Here and below, an unknown extent size (0) counts as
// DefaultExtent.
func (h Shape) RoundUp(size, extent Bytes) Bytes {
	extent = grain(extent)
	switch h.Layout {
	case Striped:
		return size.RoundUp(extent * Bytes(h.Stripes))
	case Directory:
		return size.RoundUp(Block)
	}
	return size.RoundUp(extent)
}

// Share returns what each device contributes to a logical volume of this size. For a linear volume
// it is the total over any number of devices, for a thin volume the charge to its pool.
func (h Shape) Share(size, extent Bytes) Bytes {
	switch size = h.RoundUp(size, extent); h.Layout {
	case Striped:
		return size / Bytes(h.Stripes)
	case Raid1:
		return size + raidMetadata(extent)
	case Thin:
		return h.Ratio.Of(size)
	}
	return size
}

// Takes returns the space that a logical volume of this size takes from its group. For a thin
// volume it is the charge to its pool: the size divided by the ratio.
func (h Shape) Takes(size, extent Bytes) Bytes {
	return h.Share(size, extent) * Bytes(h.Devices())
}

// LargestDevice is the inverse of Takes, with extents of LVM's default size: it returns the size of the
// largest logical volume that takes at most this much. It does not apply to thin layouts.
func (h Shape) LargestDevice(takes Bytes) Bytes {
	size := takes - takes%DefaultExtent
	if h.Layout == Directory {
		return takes - takes%Block
	}
	if h.Layout == Raid1 {
		each := takes / Bytes(h.Devices())
		size = each - each%DefaultExtent - raidMetadata(DefaultExtent)
	}
	return max(0, size)
}

// raidMetadata is what LVM sets aside besides each copy of a RAID: its superblock
// and its bitmap, which has at most 2^21 bits (kernel's dm-raid), in whole extents.
func raidMetadata(extent Bytes) Bytes { return MiB.RoundUp(grain(extent)) }

func grain(extent Bytes) Bytes {
	if extent <= 0 {
		return DefaultExtent
	}
	return extent
}

// Holds reports whether devices with this much free space each have room for a logical volume of
// this size. It errs on the safe side: LVM may stripe a volume over other devices when the first
// are full, but Holds does not rely on that.
func (h Shape) Holds(free []Bytes, size, extent Bytes) bool {
	share, sum, wide := h.Share(size, extent), Bytes(0), 0
	for _, f := range free {
		f -= f % grain(extent)
		sum += f
		if f >= share {
			wide++
		}
	}
	if h.Devices() == 1 {
		return sum >= share
	}
	return wide >= h.Devices()
}
