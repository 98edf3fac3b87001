package volume

// Reclaim is when a volume that nobody references gives its room back.
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
