package volume

// Reclaim is when an unreferenced volume is removed.
type Reclaim string

const (
	// ReclaimLazy keeps the volume until its space is needed.
	ReclaimLazy Reclaim = "lazy"
	// ReclaimImmediate removes the volume immediately.
	ReclaimImmediate Reclaim = "immediate"
)

// ParseReclaim checks a Reclaim; empty means ReclaimLazy. The error is a
// *FieldError.
func ParseReclaim(field, s string) (Reclaim, error) {
	return oneOf(field, s, ReclaimLazy, ReclaimImmediate)
}
