package pv

import "github.com/flexlvm/flexlvm/internal/volume"

// A Door is a driver interface through which kubelet reaches volumes. The volumes are the same, and
// each door also serves volumes that were created for the other.
type Door string

// The doors.
const (
	// Flex is the FlexVolume driver, which depends on no running process when a pod starts.
	Flex Door = "flex"
	// CSI is the CSI driver.
	CSI Door = "csi"
)

// ParameterDoor is the parameter of a StorageClass that names the door of its volumes.
const ParameterDoor = "door"

// ClassDoor returns the door that a class's parameters name, or else the usual one, which defaults to
// Flex.
func ClassDoor(parameters map[string]string, usual Door) Door {
	if d, err := ParseDoor(ParameterDoor, parameters[ParameterDoor]); err == nil {
		return d
	}
	if usual == "" {
		return Flex
	}
	return usual
}

// ParseDoor parses a door. The error is a *volume.FieldError.
func ParseDoor(field, s string) (Door, error) {
	switch d := Door(s); d {
	case Flex, CSI:
		return d, nil
	}
	return "", &volume.FieldError{Field: field, Value: s, Reason: "is not known; it is one of flex, csi"}
}
