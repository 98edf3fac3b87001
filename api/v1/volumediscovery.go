package v1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// VolumeDiscovery selects existing file systems and disks that become PersistentVolumes, and sets their
// StorageClass and how they are cleaned after a release. A cluster has one VolumeDiscovery. What each node
// found is in its NodeStorage. Deleting the VolumeDiscovery cleans nothing and deletes no PersistentVolume.
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

// VolumeDiscoveryName is the name of the cluster's one VolumeDiscovery.
const VolumeDiscoveryName = "flexlvm"

// Labels and annotations of the PersistentVolume of a discovered file system or disk.
const (
	// LabelDiscoveredOn is the node, in the format of pv.LabelNode.
	LabelDiscoveredOn = "flexlvm.io/discovered-on"
	// AnnotationDisk identifies the file system or disk.
	AnnotationDisk = "flexlvm.io/disk"
	// AnnotationDiskAliases is Discovered.Aliases.
	AnnotationDiskAliases = "flexlvm.io/disk-aliases"
	// AnnotationOffer is Discovered.Offer.
	AnnotationOffer = "flexlvm.io/offer"
	// Discoverer is the value of the annotation pv.kubernetes.io/provisioned-by. Because of it, Kubernetes
	// leaves the PersistentVolume alone after its release.
	Discoverer = "flexlvm.io/discovery"
)

// VolumeDiscoverySpec lists what is discovered.
type VolumeDiscoverySpec struct {
	// Classes that are discovered, each in its own directory.
	//
	// +listType=map
	// +listMapKey=storageClassName
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Classes []DiscoveryClass `json:"classes"`
}

// DiscoveryClass is a directory on nodes whose entries become volumes of a StorageClass.
type DiscoveryClass struct {
	// StorageClassName is the name of the StorageClass. Its provisioner has to be kubernetes.io/no-provisioner
	// and its volumeBindingMode WaitForFirstConsumer. The PersistentVolumes get its reclaimPolicy.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName"`
	// Directory whose entries become the volumes. No other class may have the same directory, one above it or
	// one below it.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(/[^/]+){2,}$`
	// +kubebuilder:validation:XValidation:rule="!self.contains('/../') && !self.contains('/./') && !self.endsWith('/..') && !self.endsWith('/.')",message="directory has to be a path without . and .."
	Directory string `json:"directory"`
	// NodeSelector selects nodes by their labels. All nodes are selected if it is not set.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// NamePattern selects entries by name, with the wildcards *, ? and []. Several patterns are separated by
	// commas, without spaces; a comma within [] is a literal character.
	//
	// +kubebuilder:default="*"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NamePattern string `json:"namePattern,omitempty"`
	// VolumeMode of the PersistentVolumes: Filesystem, for mounted file systems and for disks, or Block, for
	// disks only.
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
	// FSType is the type of file system that kubelet formats a disk with, if volumeMode is Filesystem and the
	// disk has no file system. It defaults to ext4.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	FSType string `json:"fsType,omitempty"`
	// Directories selects which directories are used that share a file system with others and therefore have no
	// size of their own: None, BindMounts, or All, which also uses directories that nothing is mounted on.
	//
	// +kubebuilder:validation:Enum=None;BindMounts;All
	// +kubebuilder:default=None
	// +optional
	Directories string `json:"directories,omitempty"`
	// CleanFilesystem is what happens to a released file system if the reclaimPolicy is Delete: DeleteFiles, or
	// Keep, which keeps the PersistentVolume as Retain does.
	//
	// +kubebuilder:validation:Enum=DeleteFiles;Keep
	// +kubebuilder:default=DeleteFiles
	// +optional
	CleanFilesystem string `json:"cleanFilesystem,omitempty"`
	// CleanDevice is what happens to a released disk if the reclaimPolicy is Delete: Zero, Discard, or Keep,
	// which keeps the PersistentVolume as Retain does.
	//
	// +kubebuilder:validation:Enum=Zero;Discard;Keep
	// +kubebuilder:default=Zero
	// +optional
	CleanDevice string `json:"cleanDevice,omitempty"`
	// Labels that are added to the PersistentVolumes.
	// +optional
	Labels VolumeLabels `json:"labels,omitempty"`
	// NodeLabels are the keys of node labels that are copied to the PersistentVolumes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	NodeLabels []string `json:"nodeLabels,omitempty"`
}

// Selects reports whether the class applies to a node with these labels.
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

// Check returns an error if a field of the class has a value that this version does not know, rather than guess
// its meaning.
func (c *DiscoveryClass) Check() error {
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"volumeMode", c.VolumeMode, []string{"", string(corev1.PersistentVolumeFilesystem), string(corev1.PersistentVolumeBlock)}},
		{"accessMode", c.AccessMode, []string{"", string(corev1.ReadWriteOnce), string(corev1.ReadWriteOncePod)}},
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

// Version identifies the object and its spec: it differs for an earlier spec, and for another object of the
// same name.
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
