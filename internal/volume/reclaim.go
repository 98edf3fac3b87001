package volume

// Reclaim says when an unreferenced volume is removed.
type Reclaim string

const (
	// ReclaimLazy keeps it until its room is needed.
	ReclaimLazy Reclaim = "lazy"
	// ReclaimImmediate removes it at once.
	ReclaimImmediate Reclaim = "immediate"
)

// ParseReclaim checks a Reclaim; empty means ReclaimLazy. The error is a
// *FieldError.
func ParseReclaim(field, s string) (Reclaim, error) {
	return oneOf(field, s, ReclaimLazy, ReclaimImmediate)
}
