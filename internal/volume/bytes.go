package volume

import (
	"fmt"
	"math"
	"strconv"
)

// Bytes is a size or an amount of storage.
type Bytes int64

// Binary units.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// Block is the XFS block size passed to mkfs. It is also the granularity of a quota: the kernel
// rounds a limit up to whole blocks (xfs_qm_scall_setqlim).
const Block = 4 * KiB

// MaxSize is the largest size a volume may request. It is far above any node's disks and far below
// where the arithmetic on sizes could overflow, so a larger request is a mistake.
const MaxSize = 500 * TiB

// ParseBytes parses a size in the form used in options and tags: decimal digits, no sign,
// no unit, no leading zero, 1 to MaxSize. The error is a *FieldError.
func ParseBytes(field, s string) (Bytes, error) {
	n, err := parseCount(field, s, int64(MaxSize))
	return Bytes(n), err
}

// parseCount parses a canonical positive decimal number of at most limit.
func parseCount(field, s string, limit int64) (int64, error) {
	if s == "" {
		return 0, invalid(field, "", "is empty; give a whole decimal number greater than 0")
	}
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0, invalid(field, s, "is not a whole decimal number greater than 0 (no sign, no unit, no fraction)")
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil || n > limit:
		return 0, invalid(field, s, "is more than %d, the most that is supported", limit)
	case n == 0:
		return 0, invalid(field, s, "must be greater than 0")
	case s[0] == '0':
		return 0, invalid(field, s, "has leading zeros; give it as %d", n)
	}
	return n, nil
}

// RoundUp returns the smallest multiple of grain that is not less than b.
func (b Bytes) RoundUp(grain Bytes) Bytes {
	return (b + grain - 1) / grain * grain
}

// String formats the size for people: in the largest binary unit that leaves no fraction,
// if there is one, else with two decimals.
func (b Bytes) String() string {
	units := []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}}
	for _, u := range units {
		if b < u.size {
			continue
		}
		if b%u.size == 0 {
			return fmt.Sprintf("%d %s", b/u.size, u.name)
		}
		if f := float64(b) / float64(u.size); f < 1024 {
			return fmt.Sprintf("%.2f %s", math.Floor(f*100)/100, u.name)
		}
	}
	return fmt.Sprintf("%d B", int64(b))
}
