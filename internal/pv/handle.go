package pv

import (
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// AttributeNamespace is the attribute of a CSI PersistentVolume that holds the namespace of the claim
// that the volume was created for. All other attributes are options of the volume.
const AttributeNamespace = "namespace"

// handleReaders ends the handle of a replica's PersistentVolume for readers. kubelet treats two
// PersistentVolumes with one handle as one volume.
const handleReaders = "readers"

// Handle returns the volume handle of a CSI PersistentVolume: GROUP/VOLUME, or for readers
// GROUP/VOLUME/readers.
func Handle(g volume.Group, n volume.Name, readers bool) string {
	handle := string(g) + "/" + string(n)
	if readers {
		handle += "/" + handleReaders
	}
	return handle
}

// ParseHandle parses the result of Handle. The error is a *volume.FieldError about field.
func ParseHandle(field, s string) (g volume.Group, n volume.Name, readers bool, err error) {
	parts := strings.Split(s, "/")
	if len(parts) == 3 && parts[2] == handleReaders {
		parts, readers = parts[:2], true
	}
	if len(parts) != 2 {
		return "", "", false, &volume.FieldError{Field: field, Value: s, Reason: "is not the handle of a flexlvm volume, which is GROUP/VOLUME"}
	}
	if g, err = volume.ParseGroup(field, parts[0]); err != nil {
		return "", "", false, err
	}
	if n, err = volume.ParseName(field, parts[1]); err != nil {
		return "", "", false, err
	}
	return g, n, readers, nil
}
