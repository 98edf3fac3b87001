package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalVolume requests a volume on a named node before any claim exists. The provisioner reserves the room and
// creates a PersistentVolume that is kept for one claim of the namespace, and the node creates the volume.
// Deleting the LocalVolume gives the volume up once no claim is bound to it, as deleting a claim would.
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

// LocalVolumeSpec is the desired volume.
type LocalVolumeSpec struct {
	// NodeName is the name of the node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// StorageClassName is the StorageClass whose parameters the volume gets. The claim names the same class.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName"`
	// Size of the volume.
	Size DiskSize `json:"size"`
	// ClaimName is the claim, in the namespace of the LocalVolume, that the volume is kept for. It defaults to
	// the name of the LocalVolume.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="claimName must be a valid name of a claim: lower-case letters, digits, - and .; each part between dots begins and ends with a letter or a digit"
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
	// Parameters override those of the StorageClass: fsType, inodes, layout, mirrors, stripes, stripeSizeKiB.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['fsType', 'inodes', 'layout', 'mirrors', 'stripes', 'stripeSizeKiB'])",message="may set only fsType, inodes, layout, mirrors, stripes and stripeSizeKiB; set other parameters in the StorageClass"
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Parameters map[string]string `json:"parameters,omitempty"`
}

// LocalVolumeStatus is the observed state of a LocalVolume.
type LocalVolumeStatus struct {
	// PersistentVolumeName is the name of the PersistentVolume that was created.
	// +optional
	PersistentVolumeName string `json:"persistentVolumeName,omitempty"`
	// Conditions holds the condition Ready, whose reason and message explain it.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of the condition Ready of a LocalVolume.
const (
	// LocalVolumeRefused: the volume cannot be created; the message explains why.
	LocalVolumeRefused = "Refused"
	// LocalVolumeNoRoom: the node has no room for the volume yet, or has not reported.
	LocalVolumeNoRoom = "NoRoom"
	// LocalVolumeMaking: the room is reserved, and the node has not created the volume yet.
	LocalVolumeMaking = "Making"
	// LocalVolumeMade: the volume exists and is kept for its claim.
	LocalVolumeMade = "Made"
	// LocalVolumeNodeGone: no claim is bound to the volume, and its node was deleted from the cluster.
	LocalVolumeNodeGone = "NodeGone"
	// LocalVolumeBound: the claim is bound to the volume.
	LocalVolumeBound = "Bound"
	// LocalVolumeReleased: the claim was bound to the volume and was deleted.
	LocalVolumeReleased = "Released"
	// LocalVolumeGone: the PersistentVolume was deleted. The volume is not created again.
	LocalVolumeGone = "Gone"
	// LocalVolumeInUse: the LocalVolume is being deleted, and its claim is still bound to the volume.
	LocalVolumeInUse = "InUse"
)

// DeclaredVolume is the volume of a LocalVolume on its node.
type DeclaredVolume struct {
	// Name of the PersistentVolume.
	Name string `json:"name"`
	// State is Made or Waiting.
	State DeclaredState `json:"state"`
	// Message explains why the volume has not been created.
	// +optional
	Message string `json:"message,omitempty"`
}
