package volume

import (
	"math/bits"
	"strconv"
)

// Layout is how a volume lies on its pool's devices.
type Layout string

// The layouts of the design. Thin cannot be made by this release.
const (
	// Linear volumes lie wherever the group has room.
	Linear Layout = "linear"
	// Striped volumes are spread over several devices, a little on each in turn.
	Striped Layout = "striped"
	// Raid1 volumes lie whole on each of several devices.
	Raid1 Layout = "raid1"
	Thin  Layout = "thin"
)

// ParseLayout checks a layout; empty means Linear. The error is a *FieldError.
func ParseLayout(field, s string) (Layout, error) {
	switch l := Layout(s); l {
	case "":
		return Linear, nil
	case Linear, Striped, Raid1:
		return l, nil
	case Thin:
		return "", notInThisRelease(field, s)
	}
	return "", invalid(field, s, "is not a layout; it is one of linear, striped, raid1, thin")
}

func notInThisRelease(field, layout string) error {
	return invalid(field, layout, "is not supported by this release; use %q, %q or %q", Linear, Striped, Raid1)
}

// What a layout is where its options are not set.
const (
	DefaultStripes   = 2
	DefaultStripeKiB = 64 // LVM's own
	DefaultMirrors   = 1
)

// What LVM takes: at most 128 stripes (lvcreate(8)) and ten copies in all
// (lvmraid(7)); a stripe is a power of two of at least 4 KiB, and none is larger
// than an extent.
const (
	maxStripes   = 128
	minStripeKiB = 4
	maxStripeKiB = int(DefaultExtent / KiB)
	maxMirrors   = 9
)

// ParseStripes reads over how many devices a volume is striped. The error is a
// *FieldError.
func ParseStripes(field, s string) (int, error) {
	n, err := parseCount(field, s, maxStripes)
	if err == nil && n < 2 {
		return 0, invalid(field, s, "is less than 2, the fewest devices that a volume can be striped over; use layout %q", Linear)
	}
	return int(n), err
}

// ParseStripeKiB reads the size of a stripe. The error is a *FieldError.
func ParseStripeKiB(field, s string) (int, error) {
	n, err := parseCount(field, s, int64(maxStripeKiB))
	if err == nil && (n < minStripeKiB || bits.OnesCount64(uint64(n)) != 1) {
		return 0, invalid(field, s, "is not a power of two from %d to %d", minStripeKiB, maxStripeKiB)
	}
	return int(n), err
}

// ParseMirrors reads how many copies a volume has besides the first. The error
// is a *FieldError.
func ParseMirrors(field, s string) (int, error) {
	n, err := parseCount(field, s, maxMirrors)
	return int(n), err
}

// A Shape is a layout with its numbers; those of other layouts are 0. Only
// Spec.Shape and LVM's reports make one, so there are no defaults left in it.
type Shape struct {
	Layout    Layout `json:"layout,omitempty"`
	Stripes   int    `json:"stripes,omitempty"`
	StripeKiB int    `json:"stripeSizeKiB,omitempty"`
	Mirrors   int    `json:"mirrors,omitempty"`
}

// Shape is the layout of s, with the defaults put in.
func (s Spec) Shape() Shape {
	out := Shape{Layout: s.Layout, Stripes: s.Stripes, StripeKiB: s.StripeKiB, Mirrors: s.Mirrors}
	switch s.Layout {
	case Striped:
		out.Stripes = or(out.Stripes, DefaultStripes)
		out.StripeKiB = or(out.StripeKiB, DefaultStripeKiB)
	case Raid1:
		out.Mirrors = or(out.Mirrors, DefaultMirrors)
	}
	return out
}

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// options are those that belong to one layout alone.
func (h Shape) options() []shapeOption {
	return []shapeOption{
		{OptionStripes, Striped, h.Stripes},
		{OptionStripeKiB, Striped, h.StripeKiB},
		{OptionMirrors, Raid1, h.Mirrors},
	}
}

type shapeOption struct {
	name   string
	layout Layout
	value  int
}

func (h Shape) addOptions(out map[string]string) {
	for _, o := range h.options() {
		if o.value != 0 {
			out[o.name] = strconv.Itoa(o.value)
		}
	}
}

func (h Shape) validate() error {
	switch h.Layout {
	case Linear, Striped, Raid1:
	case Thin:
		return notInThisRelease(OptionLayout, string(h.Layout))
	default:
		return invalid(OptionLayout, string(h.Layout), "is not a layout; it is one of linear, striped, raid1, thin")
	}
	for _, o := range h.options() {
		if o.value != 0 && o.layout != h.Layout {
			return invalid(o.name, strconv.Itoa(o.value), "belongs to layout %s, and the layout is %s; remove it", o.layout, h.Layout)
		}
	}
	return nil
}

// Devices is how many distinct physical devices a volume of this shape needs.
func (h Shape) Devices() int {
	switch h.Layout {
	case Striped:
		return h.Stripes
	case Raid1:
		return h.Mirrors + 1
	}
	return 1
}

// Extents rounds the size of a logical volume up to what LVM makes of it: whole
// extents, and of a striped one as many on every device. Here and below, a size
// of extents that is not known (0) counts as DefaultExtent.
func (h Shape) Extents(size, extent Bytes) Bytes {
	extent = grain(extent)
	if h.Layout == Striped {
		return size.RoundUp(extent * Bytes(h.Stripes))
	}
	return size.RoundUp(extent)
}

// Share is what each of its devices gives to a logical volume of this size; of a
// linear one any number of devices give it together.
func (h Shape) Share(size, extent Bytes) Bytes {
	switch size = h.Extents(size, extent); h.Layout {
	case Striped:
		return size / Bytes(h.Stripes)
	case Raid1:
		return size + raidMetadata(extent)
	}
	return size
}

// Takes is what a logical volume of this size takes from its group.
func (h Shape) Takes(size, extent Bytes) Bytes {
	return h.Share(size, extent) * Bytes(h.Devices())
}

// raidMetadata is what LVM sets aside beside each copy of a RAID: its superblock
// and its bitmap, which has at most 2^21 bits (kernel's dm-raid), in whole extents.
func raidMetadata(extent Bytes) Bytes { return MiB.RoundUp(grain(extent)) }

func grain(extent Bytes) Bytes {
	if extent <= 0 {
		return DefaultExtent
	}
	return extent
}

// Holds tells whether devices with so much free space each have room for a
// logical volume of this size. It errs on the safe side: LVM may stripe a volume
// over other devices where the first are full, and is not counted on to do so.
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
