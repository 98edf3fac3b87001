package v1

// DeclaredGroup is the result of a VolumeGroup on one node.
type DeclaredGroup struct {
	// Name of the VolumeGroup.
	Name string `json:"name"`
	// Group is the name of the volume group that the VolumeGroup declares.
	Group string `json:"group"`
	// State is Made, Waiting or Refused.
	State DeclaredState `json:"state"`
	// Message explains the state.
	// +optional
	Message string `json:"message,omitempty"`
	// Disks that the group consists of, at most 64. If the last pass did not find the group, or failed, those of which
	// it last consisted, with a reason.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Disks []DeclaredDisk `json:"disks,omitempty"`
	// Refused are disks that match but are not used, at most 32.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Refused []DeclaredDisk `json:"refused,omitempty"`
}

// DeclaredDisk is a disk that a VolumeGroup matches.
type DeclaredDisk struct {
	// ID identifies the disk: its WWN or its serial number.
	// +optional
	ID string `json:"id,omitempty"`
	// Path is the current path of its device.
	// +optional
	Path string `json:"path,omitempty"`
	// Reason why the disk is not used, or why it is listed although the last pass did not see it in the group.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// DeclaredState is the state of a VolumeGroup, or of the volume of a LocalVolume, on a node.
type DeclaredState string

// The states of a declared group.
const (
	// DeclaredMade: the group exists, and this declaration created it.
	DeclaredMade DeclaredState = "Made"
	// DeclaredWaiting: no disk of the node matches yet, or a disk that matches is busy.
	DeclaredWaiting DeclaredState = "Waiting"
	// DeclaredRefused: the group was not created, or part of it failed; the message explains why.
	DeclaredRefused DeclaredState = "Refused"
)
