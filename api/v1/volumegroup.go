package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeGroup declares a volume group: on every node that its selector matches, the
// node daemon makes it of those of the named disks that are blank. Its result is in
// the NodeStorage of each node. Deleting it removes nothing from any disk.
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

// AnnotationTakeAgain names disks that the node daemon may take although it has taken
// them before: ID or ID@NOTE, with commas between them, where ID is what the
// NodeStorage calls the disk. Each entry counts once.
const AnnotationTakeAgain = "flexlvm.io/take-again"

// VolumeGroupSpec is what is declared.
//
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="name cannot be changed; make another VolumeGroup"
// +kubebuilder:validation:XValidation:rule="has(self.thinPool) == has(oldSelf.thinPool) && (!has(self.thinPool) || self.thinPool == oldSelf.thinPool)",message="thinPool cannot be changed; make another VolumeGroup, or the pool by hand"
// +kubebuilder:validation:XValidation:rule="has(self.disks) != has(self.__loop__)",message="one of disks and loop is needed"
// +kubebuilder:validation:XValidation:rule="has(self.__loop__) == has(oldSelf.__loop__) && (!has(self.__loop__) || self.__loop__ == oldSelf.__loop__)",message="loop cannot be changed; make another VolumeGroup"
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
	// Disks that the group is made of: those that are blank and match at least one of
	// these.
	//
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Disks []DiskSelector `json:"disks,omitempty"`
	// Loop is a sparse file that the group is made on in place of disks, for a try or for
	// tests.
	// +optional
	Loop *LoopSpec `json:"loop,omitempty"`
	// ThinPool is made in the group when the group is made.
	// +optional
	ThinPool *ThinPoolSpec `json:"thinPool,omitempty"`
	// Extend adds matching blank disks that come after the group was made. Without it,
	// they are only reported.
	// +optional
	Extend bool `json:"extend,omitempty"`
}

// DiskSelector matches whole disks for which all that it says is true.
//
// +kubebuilder:validation:XValidation:rule="has(self.byID) || has(self.path)",message="byID or path is needed: a disk is never taken for its size alone"
// +kubebuilder:validation:XValidation:rule="!has(self.minSize) || !has(self.maxSize) || !isQuantity(self.minSize) || !isQuantity(self.maxSize) || quantity(self.minSize).compareTo(quantity(self.maxSize)) <= 0",message="minSize is more than maxSize"
type DiskSelector struct {
	// ByID is a name in /dev/disk/by-id, or the ID that the NodeStorage shows. The
	// wildcards *, ? and [] may follow the kind of the ID and four characters of what is
	// after it, as in nvme-Samsung_SSD_980*.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]+[-.]([A-Za-z0-9_]{4}[^/\\]*|[^/\\*?\[\]]+)$`
	ByID string `json:"byID,omitempty"`
	// Path is that of the disk, in /dev or in /dev/disk/by-path or /dev/disk/by-id. The
	// wildcards *, ? and [] may follow a literal beginning of its name, as in /dev/sd*.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^/dev/([a-z]{2}[^/\\]*|disk/by-(id|path)/[A-Za-z0-9]+[-.]([A-Za-z0-9_]{4}[^/\\]*|[^/\\*?\[\]]+))$`
	Path string `json:"path,omitempty"`
	// MinSize is the least size of the disk.
	// +optional
	MinSize DiskSize `json:"minSize,omitempty"`
	// MaxSize is the greatest size of the disk.
	// +optional
	MaxSize DiskSize `json:"maxSize,omitempty"`
	// Rotational is true for hard disks alone, false for solid state disks alone.
	// +optional
	Rotational *bool `json:"rotational,omitempty"`
}

// DiskSize is a quantity of bytes, such as 900G or 1Ti.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",message="has to be a quantity of more than 0, such as 900G"
type DiskSize string

// ThinPoolSpec is a thin pool to be made in a group.
type ThinPoolSpec struct {
	// Name of the pool.
	// +kubebuilder:default=thinpool
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	// +optional
	Name string `json:"name,omitempty"`
	// Size of its data; all that its metadata leaves, if it is not given.
	// +optional
	Size DiskSize `json:"size,omitempty"`
}

// LoopSpec is a loop device to be made on each node.
type LoopSpec struct {
	// File is the path of a file that does not exist yet, in a directory that does.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+\.img$`
	File string `json:"file"`
	// Size of the device, which the file grows to as it is written.
	Size DiskSize `json:"size"`
	// ForTests agrees that the group is not for data that anybody needs: it shares the disk
	// and the room of whatever else is there, and is lost with the file.
	//
	// +kubebuilder:validation:XValidation:rule="self",message="has to be true: a group on a file is for a try or for tests; use disks for data"
	ForTests bool `json:"forTests"`
}
