package volume

// Wipe is what happens to a volume's content before its extents return to the group. Users of other
// volumes never see the content anyway: XFS does not show blocks that were not written through it.
type Wipe string

const (
	// WipeNone leaves the blocks as they are.
	WipeNone Wipe = "none"
	// WipeDiscard discards the blocks, so the disk knows that they are free.
	WipeDiscard Wipe = "discard"
	// WipeZero writes zeros over them.
	WipeZero Wipe = "zero"
)

// ParseWipe checks a Wipe; empty means WipeNone. The error is a *FieldError.
func ParseWipe(field, s string) (Wipe, error) {
	return oneOf(field, s, WipeNone, WipeDiscard, WipeZero)
}
