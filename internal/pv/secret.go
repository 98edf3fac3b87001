package pv

import (
	"fmt"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A SecretRef names a Secret. The zero value names none.
type SecretRef struct{ Namespace, Name string }

// Secrets are the Secrets that kubelet reads for an encrypted volume and passes to the CSI driver.
type Secrets struct {
	Publish SecretRef // at each mount
	Expand  SecretRef // at each growth
}

// SecretKey is the entry of a Secret that holds the key of an encrypted volume.
const SecretKey = "key"

// ParseSecretRef parses NAMESPACE/NAME. The error is a *volume.FieldError.
func ParseSecretRef(field, s string) (SecretRef, error) {
	namespace, name, both := strings.Cut(s, "/")
	if !both {
		return SecretRef{}, &volume.FieldError{Field: field, Value: s, Reason: "is not NAMESPACE/NAME of a Secret"}
	}
	r := SecretRef{namespace, name}
	return r, r.Check(field)
}

// Check checks that a Secret can have this namespace and name. The error is a *volume.FieldError.
func (r SecretRef) Check(field string) error {
	if _, err := volume.ParseNamespace(field, r.Namespace); err != nil {
		return err
	}
	_, err := ParseObjectName(field, r.Name)
	return err
}

// lines returns the reference as a field of a PersistentVolume's source.
func (r SecretRef) lines(indent, field string) string {
	if r == (SecretRef{}) {
		return ""
	}
	return fmt.Sprintf("%s%s:\n", indent, field) + entries(indent+"  ", map[string]string{"namespace": r.Namespace, "name": r.Name})
}
