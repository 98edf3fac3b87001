package volume

// Trim is how often the file system of a mounted volume discards its unused blocks.
type Trim string

const (
	// TrimAuto leaves the interval to the flags of the node daemon.
	TrimAuto Trim = "auto"
	// TrimDaily trims once a day, whatever the layout.
	TrimDaily Trim = "daily"
	// TrimWeekly trims once a week, whatever the layout.
	TrimWeekly Trim = "weekly"
	// TrimNever disables trimming.
	TrimNever Trim = "never"
)

// ParseTrim checks a Trim; empty means TrimAuto. The error is a *FieldError.
func ParseTrim(field, s string) (Trim, error) {
	return oneOf(field, s, TrimAuto, TrimDaily, TrimWeekly, TrimNever)
}

// Regular reports whether the volume itself requests regular trimming.
func (t Trim) Regular() bool { return t == TrimDaily || t == TrimWeekly }
