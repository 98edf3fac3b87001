package volume

import "fmt"

// A FieldError says which field of a request is wrong, what it held, and what to do about
// it. Field is the name that the caller knows: an option of the PersistentVolume, a
// parameter of the StorageClass, a flag.
type FieldError struct {
	Field  string
	Value  string
	Reason string
}

func (e *FieldError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Reason)
	}
	return fmt.Sprintf("%s %q: %s", e.Field, clip(e.Value), e.Reason)
}

// clip keeps a hostile value from filling logs and events.
func clip(s string) string { return Clip(s, 80, "…") }

func invalid(field, value, reason string, args ...any) *FieldError {
	return &FieldError{Field: field, Value: value, Reason: fmt.Sprintf(reason, args...)}
}
