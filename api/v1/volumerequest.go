package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeStorageSpec is what people ask of a node.
type NodeStorageSpec struct {
	// Requests about volumes that no PersistentVolume names, at most 20. The daemon carries
	// each out once and answers in the status; who has made one removes it then.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Requests []VolumeRequest `json:"requests,omitempty"`
}

// A VolumeRequest asks for another state of a volume.
type VolumeRequest struct {
	// ID tells it from all others.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// Time at which it was made. One that is older than an hour is not carried out.
	Time metav1.Time `json:"time"`
	// Group is the volume group.
	// +kubebuilder:validation:MaxLength=128
	Group string `json:"group"`
	// Name of the logical volume.
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// FilesystemUUID of the volume that is meant.
	// +kubebuilder:validation:MaxLength=36
	FilesystemUUID string `json:"filesystemUUID"`
	// State that it is to have: retained, so that it stays until a person decides, or
	// unreferenced, so that its room may be taken back.
	// +kubebuilder:validation:Enum=retained;unreferenced
	State string `json:"state"`
}

// A VolumeAnswer is what became of a VolumeRequest.
type VolumeAnswer struct {
	// ID of the request.
	ID string `json:"id"`
	// Done: the volume has the state.
	Done bool `json:"done"`
	// Message says so, or why not.
	Message string `json:"message"`
}
