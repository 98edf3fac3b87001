package volume

// Wipe is what happens to a volume's content before its extents go back to the
// group. The content never reaches another volume's users in any case: XFS does
// not show blocks that were not written through it.
type Wipe string

const (
	// WipeNone leaves the blocks as they are.
	WipeNone Wipe = "none"
	// WipeDiscard tells the disk that the blocks are free.
	WipeDiscard Wipe = "discard"
	// WipeZero writes zeros over them.
	WipeZero Wipe = "zero"
)

// ParseWipe checks a way to wipe; empty means WipeNone. The error is a
// *FieldError.
func ParseWipe(field, s string) (Wipe, error) {
	return oneOf(field, s, WipeNone, WipeDiscard, WipeZero)
}
