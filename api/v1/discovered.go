package v1

import "k8s.io/apimachinery/pkg/api/resource"

// Discovered is what a node found at one path.
type Discovered struct {
	// Path of the entry, which pods mount.
	Path string `json:"path"`
	// StorageClassName of the class that discovers the path.
	StorageClassName string `json:"storageClassName"`
	// Kind is Filesystem, Directory or Device; empty if nothing is at the path.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Size in bytes.
	// +optional
	Size resource.Quantity `json:"size,omitzero"`
	// Disk identifies the file system or disk: the UUID of the file system, or the WWN or serial number of the
	// disk.
	// +optional
	Disk string `json:"disk,omitempty"`
	// Aliases identify what else holds the same data, separated by commas: the devices that it is on, down to the
	// disks, and the file system on a device.
	// +optional
	Aliases string `json:"aliases,omitempty"`
	// State is Ready, Provided, Cleaning, Cleaned, Kept, Refused or Missing.
	State DiscoveredState `json:"state"`
	// Offer is the number of the last offer of this entry. Each time the entry becomes Ready, it is set to the
	// current time in seconds since 1970 by the node's clock, or to the previous number plus one if that is
	// greater.
	// +optional
	Offer int64 `json:"offer,omitempty"`
	// PersistentVolume that was created from this entry, if any.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// PersistentVolumeUID is the UID of the PersistentVolume.
	// +optional
	PersistentVolumeUID string `json:"persistentVolumeUID,omitempty"`
	// ClaimUID is the UID of the claim after whose release the entry was cleaned, if its state is Cleaned.
	// +optional
	ClaimUID string `json:"claimUID,omitempty"`
	// Withdrawn reports whether the PersistentVolume can be deleted while no claim is bound to it: it was
	// created from a device that holds data, which kubelet would format.
	// +optional
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Message explains the state.
	// +optional
	Message string `json:"message,omitempty"`
}

// DiscoveredState is the state of a discovered entry.
type DiscoveredState string

// The states of a discovered entry.
const (
	// DiscoveredReady: a PersistentVolume may be created from the entry.
	DiscoveredReady DiscoveredState = "Ready"
	// DiscoveredProvided: the entry has a PersistentVolume, which is not released.
	DiscoveredProvided DiscoveredState = "Provided"
	// DiscoveredCleaning: the PersistentVolume was released, and the entry is being cleaned.
	DiscoveredCleaning DiscoveredState = "Cleaning"
	// DiscoveredCleaned: the entry is clean, and the PersistentVolume can be deleted.
	DiscoveredCleaned DiscoveredState = "Cleaned"
	// DiscoveredKept: the PersistentVolume was released, and it and its data are kept.
	DiscoveredKept DiscoveredState = "Kept"
	// DiscoveredRefused: the entry is left alone; the message explains why.
	DiscoveredRefused DiscoveredState = "Refused"
	// DiscoveredMissing: the file system or disk that the PersistentVolume was created from is not there.
	DiscoveredMissing DiscoveredState = "Missing"
)
