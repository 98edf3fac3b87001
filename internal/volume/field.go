package volume

import (
	"errors"
	"fmt"
)

// ErrUnknown is the error about a tag or an option that this release does not know, and a newer
// release may have written.
var ErrUnknown = errors.New("is not known to this release")

// A FieldError reports which field of a request is wrong, its value, and how to correct it. Field
// is the name that the caller knows: an option of the PersistentVolume, a parameter of the
// StorageClass, a flag.
type FieldError struct {
	Field  string
	Value  string
	Reason string

	unknown bool
}

// Is reports whether target is ErrUnknown and the field is unknown to this release.
func (e *FieldError) Is(target error) bool { return target == ErrUnknown && e.unknown }

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

// unknown returns the error about a field that this release does not know.
func unknown(field, value, more string) *FieldError {
	return &FieldError{Field: field, Value: value, Reason: ErrUnknown.Error() + more, unknown: true}
}

// Upgrade is the remedy for unknown tags and options.
const Upgrade = "a newer release of flexlvm has probably written this: change nothing, and upgrade the provisioner, the node daemon and the driver"

// Remedy returns what to do about tags or options that cannot be parsed. Unknown ones are correct
// as they are, and only flexlvm is too old.
func Remedy(unknown bool, otherwise string) string {
	if unknown {
		return Upgrade
	}
	return otherwise
}
