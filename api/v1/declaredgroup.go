package v1

// DeclaredGroup is what became of a VolumeGroup on one node.
type DeclaredGroup struct {
	// Name of the VolumeGroup.
	Name string `json:"name"`
	// Group is the name of the volume group that it declares.
	Group string `json:"group"`
	// State is Made, Waiting or Refused.
	State DeclaredState `json:"state"`
	// Message says why in words.
	// +optional
	Message string `json:"message,omitempty"`
	// Disks that the group is made of, at most 64.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Disks []DeclaredDisk `json:"disks,omitempty"`
	// Refused are disks that match and are not taken, at most 32.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Refused []DeclaredDisk `json:"refused,omitempty"`
}

// DeclaredDisk is a disk that a VolumeGroup matches.
type DeclaredDisk struct {
	// ID tells the disk from all others: its WWN or its serial number.
	// +optional
	ID string `json:"id,omitempty"`
	// Path of its device at present.
	// +optional
	Path string `json:"path,omitempty"`
	// Reason for which it is not taken.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// DeclaredState is what became of a VolumeGroup on a node.
type DeclaredState string

// The states of a declared group.
const (
	// DeclaredMade: the group is there, and this declaration made it.
	DeclaredMade DeclaredState = "Made"
	// DeclaredWaiting: no disk of the node matches yet, or one that does is busy.
	DeclaredWaiting DeclaredState = "Waiting"
	// DeclaredRefused: the group is not made, and the message says why.
	DeclaredRefused DeclaredState = "Refused"
)
