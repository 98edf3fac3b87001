package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalVolume asks for a volume on a named node before any claim is there: the provisioner
// reserves its room and writes a PersistentVolume that is kept for one claim of the
// namespace, and the node makes the volume. Deleting it gives the volume up once no claim
// is bound to it, as deleting the claim would.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,singular=localvolume,path=localvolumes,categories=flexlvm
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=flexlvm"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=definitions"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.storageClassName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Volume",type=string,priority=1,JSONPath=`.status.persistentVolumeName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LocalVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed; delete the LocalVolume and make another, or let its claim grow"
	Spec LocalVolumeSpec `json:"spec"`
	// +optional
	Status LocalVolumeStatus `json:"status,omitzero"`
}

// LocalVolumeList is a list of LocalVolumes.
//
// +kubebuilder:object:root=true
type LocalVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []LocalVolume `json:"items"`
}

// LocalVolumeSpec is what is asked for.
type LocalVolumeSpec struct {
	// NodeName is the name of the node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// StorageClassName is the class whose parameters the volume has, and which its claim
	// names.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName"`
	// Size of the volume.
	Size DiskSize `json:"size"`
	// ClaimName is the claim, of this namespace, that the volume is kept for; the name of
	// the LocalVolume if it is not given.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="claimName has to be what a claim can be called: lower-case letters, digits, - and ., with a letter or a digit at either end of each part"
	ClaimName string `json:"claimName,omitempty"`
	// AccessModes of the volume.
	//
	// +optional
	// +listType=set
	// +kubebuilder:default={ReadWriteOnce}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:XValidation:rule="self.all(m, m in ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteOncePod'])",message="accessModes may hold ReadWriteOnce, ReadOnlyMany and ReadWriteOncePod: a local volume is on one node"
	// +kubebuilder:validation:XValidation:rule="!('ReadWriteOncePod' in self) || size(self) == 1",message="ReadWriteOncePod excludes all other accessModes; give it alone, or leave it out"
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// VolumeMode is Filesystem or Block.
	//
	// +optional
	// +kubebuilder:default=Filesystem
	// +kubebuilder:validation:Enum=Filesystem;Block
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// Parameters take the place of those of the class: fsType, inodes, layout, mirrors,
	// stripes, stripeSizeKiB.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['fsType', 'inodes', 'layout', 'mirrors', 'stripes', 'stripeSizeKiB'])",message="may hold fsType, inodes, layout, mirrors, stripes and stripeSizeKiB; all else is for the class to say"
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Parameters map[string]string `json:"parameters,omitempty"`
}

// LocalVolumeStatus is what became of it.
type LocalVolumeStatus struct {
	// PersistentVolumeName is that of the PersistentVolume that was made.
	// +optional
	PersistentVolumeName string `json:"persistentVolumeName,omitempty"`
	// Conditions: Ready, and why.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of the condition Ready of a LocalVolume.
const (
	// LocalVolumeRefused: it cannot be made; the message says why.
	LocalVolumeRefused = "Refused"
	// LocalVolumeNoRoom: its node has no room for it yet, or has not reported.
	LocalVolumeNoRoom = "NoRoom"
	// LocalVolumeMaking: its room is reserved, and its node has not made it yet.
	LocalVolumeMaking = "Making"
	// LocalVolumeMade: it is made, and its claim may come.
	LocalVolumeMade = "Made"
	// LocalVolumeNodeGone: no claim is bound to it, and its node is gone from the cluster.
	LocalVolumeNodeGone = "NodeGone"
	// LocalVolumeBound: its claim is bound to it.
	LocalVolumeBound = "Bound"
	// LocalVolumeReleased: its claim was bound to it, and is gone.
	LocalVolumeReleased = "Released"
	// LocalVolumeGone: its PersistentVolume is gone; it is not made again.
	LocalVolumeGone = "Gone"
	// LocalVolumeInUse: it is deleted, and its claim is still bound to the volume.
	LocalVolumeInUse = "InUse"
)

// DeclaredVolume is a volume that a LocalVolume asks for, on its node.
type DeclaredVolume struct {
	// Name of the PersistentVolume.
	Name string `json:"name"`
	// State is Made or Waiting.
	State DeclaredState `json:"state"`
	// Message says why it is not made.
	// +optional
	Message string `json:"message,omitempty"`
}
