package volume

// Trim says how often the file system of a mounted volume discards what it does not use.
type Trim string

const (
	// TrimAuto leaves it to the flags of the node daemon.
	TrimAuto Trim = "auto"
	// TrimDaily is once a day, whatever the layout.
	TrimDaily Trim = "daily"
	// TrimWeekly is once a week, whatever the layout.
	TrimWeekly Trim = "weekly"
	// TrimNever is not at all.
	TrimNever Trim = "never"
)

// ParseTrim checks a Trim; empty means TrimAuto. The error is a *FieldError.
func ParseTrim(field, s string) (Trim, error) {
	return oneOf(field, s, TrimAuto, TrimDaily, TrimWeekly, TrimNever)
}

// Regular reports whether the volume itself asks to be trimmed from time to time.
func (t Trim) Regular() bool { return t == TrimDaily || t == TrimWeekly }
