package v1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// VolumeDiscovery says which existing file systems and disks become
// PersistentVolumes, of which StorageClass, and how they are cleaned after a release. There
// is one in a cluster. What each node has found is in its NodeStorage. Deleting it cleans
// nothing and deletes no PersistentVolume.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,singular=volumediscovery,path=volumediscoveries,categories=flexlvm
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=flexlvm"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=definitions"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'flexlvm'",message="the one VolumeDiscovery of a cluster is called flexlvm; put the classes of all nodes into it"
type VolumeDiscovery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumeDiscoverySpec `json:"spec"`
}

// VolumeDiscoveryList is a list of VolumeDiscoveries.
//
// +kubebuilder:object:root=true
type VolumeDiscoveryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeDiscovery `json:"items"`
}

// VolumeDiscoveryName is that of the one VolumeDiscovery.
const VolumeDiscoveryName = "flexlvm"

// On a PersistentVolume of something that was discovered.
const (
	// LabelDiscoveredOn is the node, as in pv.LabelNode.
	LabelDiscoveredOn = "flexlvm.io/discovered-on"
	// AnnotationDisk tells the file system or disk from all others.
	AnnotationDisk = "flexlvm.io/disk"
	// AnnotationOffer is Discovered.Offer.
	AnnotationOffer = "flexlvm.io/offer"
	// Discoverer is in the annotation pv.kubernetes.io/provisioned-by, for which Kubernetes
	// leaves the PersistentVolume alone once it is released.
	Discoverer = "flexlvm.io/discovery"
)

// VolumeDiscoverySpec is what is discovered.
type VolumeDiscoverySpec struct {
	// Classes that are discovered, each in a directory of its own.
	//
	// +listType=map
	// +listMapKey=storageClassName
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Classes []DiscoveryClass `json:"classes"`
}

// DiscoveryClass is a directory of nodes whose entries become volumes of a StorageClass.
type DiscoveryClass struct {
	// StorageClassName is that of the StorageClass, whose provisioner is
	// kubernetes.io/no-provisioner and whose volumeBindingMode is WaitForFirstConsumer. Its
	// reclaimPolicy is that of the PersistentVolumes.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName"`
	// Directory whose entries are the volumes. No other class may have it, or one above or
	// below it.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/[^/]+){2,}$`
	// +kubebuilder:validation:XValidation:rule="!self.contains('/../') && !self.contains('/./') && !self.endsWith('/..') && !self.endsWith('/.')",message="directory has to be a path without . and .."
	Directory string `json:"directory"`
	// NodeSelector selects nodes by their labels; all, if it is not given.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// NamePattern is what names of entries look like, with *, ? and []; several patterns are
	// separated by commas, without spaces. A comma within [] is one of the characters there.
	//
	// +kubebuilder:default="*"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NamePattern string `json:"namePattern,omitempty"`
	// VolumeMode of the PersistentVolumes: Filesystem, for file systems that are mounted and for
	// disks, or Block, for disks alone.
	//
	// +kubebuilder:validation:Enum=Filesystem;Block
	// +kubebuilder:default=Filesystem
	// +optional
	VolumeMode string `json:"volumeMode,omitempty"`
	// AccessMode of the PersistentVolumes.
	//
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteOncePod
	// +kubebuilder:default=ReadWriteOnce
	// +optional
	AccessMode string `json:"accessMode,omitempty"`
	// FSType is what kubelet formats a disk with, for volumeMode Filesystem, if there is no file
	// system on it; ext4, if it is not given.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	FSType string `json:"fsType,omitempty"`
	// Directories says whether entries are taken that share a file system with others, and so
	// have no size of their own: None, BindMounts, or All, which takes directories on which
	// nothing is mounted, too.
	//
	// +kubebuilder:validation:Enum=None;BindMounts;All
	// +kubebuilder:default=None
	// +optional
	Directories string `json:"directories,omitempty"`
	// CleanFilesystem says what happens to a released file system, if the reclaimPolicy is
	// Delete: DeleteFiles, or Keep, with which the PersistentVolume stays as with Retain.
	//
	// +kubebuilder:validation:Enum=DeleteFiles;Keep
	// +kubebuilder:default=DeleteFiles
	// +optional
	CleanFilesystem string `json:"cleanFilesystem,omitempty"`
	// CleanDevice says what happens to a released disk, if the reclaimPolicy is Delete: Zero,
	// Discard, or Keep.
	//
	// +kubebuilder:validation:Enum=Zero;Discard;Keep
	// +kubebuilder:default=Zero
	// +optional
	CleanDevice string `json:"cleanDevice,omitempty"`
	// Labels that the PersistentVolumes get.
	// +optional
	Labels VolumeLabels `json:"labels,omitempty"`
	// NodeLabels are labels of the node that the PersistentVolumes get.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	NodeLabels []string `json:"nodeLabels,omitempty"`
}

// Selects reports whether the class is for a node with these labels.
func (c *DiscoveryClass) Selects(node map[string]string) (bool, error) {
	if c.NodeSelector == nil {
		return true, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(c.NodeSelector)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(node)), nil
}

// Check returns an error where the class has a word that this version does not know: what it asks for is not guessed.
func (c *DiscoveryClass) Check() error {
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"volumeMode", c.VolumeMode, []string{"", string(corev1.PersistentVolumeFilesystem), string(corev1.PersistentVolumeBlock)}},
		{"directories", c.Directories, []string{"", DirectoriesNone, DirectoriesBindMounts, DirectoriesAll}},
		{"cleanFilesystem", c.CleanFilesystem, []string{"", CleanDeleteFiles, CleanKeep}},
		{"cleanDevice", c.CleanDevice, []string{"", CleanZero, CleanDiscard, CleanKeep}},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("%s is %q, which this version does not know: %s", f.name, f.value, volume.Upgrade)
		}
	}
	return nil
}

// Version differs between what a VolumeDiscovery says, what it said before, and another of its name.
func (d *VolumeDiscovery) Version() string { return fmt.Sprintf("%s/%d", d.UID, d.Generation) }

// Values of a DiscoveryClass.
const (
	DirectoriesNone       = "None"
	DirectoriesBindMounts = "BindMounts"
	DirectoriesAll        = "All"
	CleanDeleteFiles      = "DeleteFiles"
	CleanZero             = "Zero"
	CleanDiscard          = "Discard"
	CleanKeep             = "Keep"
)
