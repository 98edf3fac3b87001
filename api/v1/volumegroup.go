package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeGroup declares a volume group: on every node that matches the selector, the node daemon creates it from
// the blank disks among those that match. The result is in the NodeStorage of each node. Deleting the
// VolumeGroup removes nothing from any disk.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,singular=volumegroup,path=volumegroups,categories=flexlvm
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=flexlvm"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=definitions"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.name`
// +kubebuilder:printcolumn:name="ThinPool",type=string,JSONPath=`.spec.thinPool.name`
// +kubebuilder:printcolumn:name="Extend",type=boolean,JSONPath=`.spec.extend`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VolumeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumeGroupSpec `json:"spec"`
}

// VolumeGroupList is a list of VolumeGroups.
//
// +kubebuilder:object:root=true
type VolumeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeGroup `json:"items"`
}

// AnnotationTakeAgain names disks that the node daemon may use although it has used them before: ID or ID@NOTE,
// separated by commas, where ID is the disk's ID in the NodeStorage. Each entry counts once.
const AnnotationTakeAgain = "flexlvm.io/take-again"

// VolumeGroupSpec is the desired volume group.
//
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="name cannot be changed; create another VolumeGroup"
// +kubebuilder:validation:XValidation:rule="has(self.thinPool) == has(oldSelf.thinPool) && (!has(self.thinPool) || self.thinPool == oldSelf.thinPool)",message="thinPool cannot be changed; create another VolumeGroup, or create the pool by hand"
// +kubebuilder:validation:XValidation:rule="has(self.disks) != has(self.__loop__)",message="exactly one of disks and loop is required"
// +kubebuilder:validation:XValidation:rule="has(self.__loop__) == has(oldSelf.__loop__) && (!has(self.__loop__) || self.__loop__ == oldSelf.__loop__)",message="loop cannot be changed; create another VolumeGroup"
type VolumeGroupSpec struct {
	// NodeSelector selects the nodes by their labels. It cannot be empty.
	//
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="nodeSelector is empty and would match every node; name a label of the nodes that are meant"
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`
	// Name of the volume group.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Name string `json:"name"`
	// Disks that the group is created from: all blank disks that match at least one of these selectors.
	//
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Disks []DiskSelector `json:"disks,omitempty"`
	// Loop is a sparse file on which the group is created instead of on disks, for evaluation or tests.
	// +optional
	Loop *LoopSpec `json:"loop,omitempty"`
	// ThinPool is created in the group together with the group.
	// +optional
	ThinPool *ThinPoolSpec `json:"thinPool,omitempty"`
	// Extend adds matching blank disks that appear after the group was created. Without it, they are only
	// reported.
	// +optional
	Extend bool `json:"extend,omitempty"`
}

// DiskSelector matches whole disks that meet all of its conditions.
//
// +kubebuilder:validation:XValidation:rule="has(self.byID) || has(self.path)",message="byID or path is needed: a disk is never taken for its size alone"
// +kubebuilder:validation:XValidation:rule="!has(self.minSize) || !has(self.maxSize) || !isQuantity(self.minSize) || !isQuantity(self.maxSize) || quantity(self.minSize).compareTo(quantity(self.maxSize)) <= 0",message="minSize is more than maxSize"
type DiskSelector struct {
	// ByID is a name in /dev/disk/by-id, or the ID in the NodeStorage. The wildcards *, ? and [] are allowed
	// after the kind of the ID and the four characters that follow it, as in nvme-Samsung_SSD_980*.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]+[-.]([A-Za-z0-9_]{4}[^/\\]*|[^/\\*?\[\]]+)$`
	ByID string `json:"byID,omitempty"`
	// Path of the disk, in /dev, /dev/disk/by-path or /dev/disk/by-id. The wildcards *, ? and [] are allowed
	// after the literal beginning of the name, as in /dev/sd*.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^/dev/([a-z]{2}[^/\\]*|disk/by-(id|path)/[A-Za-z0-9]+[-.]([A-Za-z0-9_]{4}[^/\\]*|[^/\\*?\[\]]+))$`
	Path string `json:"path,omitempty"`
	// MinSize is the minimum size of the disk.
	// +optional
	MinSize DiskSize `json:"minSize,omitempty"`
	// MaxSize is the maximum size of the disk.
	// +optional
	MaxSize DiskSize `json:"maxSize,omitempty"`
	// Rotational is true to match only hard disks, and false to match only solid state disks.
	// +optional
	Rotational *bool `json:"rotational,omitempty"`
}

// DiskSize is a quantity of bytes, such as 900G or 1Ti.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",message="has to be a quantity of more than 0, such as 900G"
type DiskSize string

// ThinPoolSpec is a thin pool that is created in a group.
type ThinPoolSpec struct {
	// Name of the pool.
	// +kubebuilder:default=thinpool
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	// +optional
	Name string `json:"name,omitempty"`
	// Size of the pool's data. It defaults to all the space that the metadata leaves.
	// +optional
	Size DiskSize `json:"size,omitempty"`
}

// LoopSpec is a loop device that is created on each node.
type LoopSpec struct {
	// File is the path of a file that does not exist yet, in a directory that exists.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+\.img$`
	File string `json:"file"`
	// Size of the device. The file is sparse and grows up to this size as it is written.
	Size DiskSize `json:"size"`
	// ForTests must be true, to confirm that the group is not for data that anybody needs: it shares its disk
	// and space with everything else there, and is lost with the file.
	//
	// +kubebuilder:validation:XValidation:rule="self",message="must be true: a volume group on a file is only for trials and tests; use disks for data"
	ForTests bool `json:"forTests"`
}
