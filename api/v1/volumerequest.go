package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeStorageSpec holds the requests of users to a node.
type NodeStorageSpec struct {
	// Requests about volumes that no PersistentVolume names, at most 20. The daemon carries out each once and
	// puts its result into status.answers; then the client that made the request removes it.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Requests []VolumeRequest `json:"requests,omitempty"`
}

// A VolumeRequest requests another state of a volume.
type VolumeRequest struct {
	// ID identifies the request.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// Time when the request was made. A request that is older than an hour is not carried out.
	Time metav1.Time `json:"time"`
	// Group is the volume group of the volume.
	// +kubebuilder:validation:MaxLength=128
	Group string `json:"group"`
	// Name of the logical volume.
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// FilesystemUUID of the volume, so that no other volume of that name is changed.
	// +kubebuilder:validation:MaxLength=36
	FilesystemUUID string `json:"filesystemUUID"`
	// State that the volume is to get: retained, so that it is kept until a person decides, or unreferenced, so
	// that it may be evicted.
	// +kubebuilder:validation:Enum=retained;unreferenced
	State string `json:"state"`
}

// A VolumeAnswer is the result of a VolumeRequest.
type VolumeAnswer struct {
	// ID of the request.
	ID string `json:"id"`
	// Done reports whether the volume has the requested state.
	Done bool `json:"done"`
	// Message confirms the result, or explains the failure.
	Message string `json:"message"`
}
