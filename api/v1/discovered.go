package v1

import "k8s.io/apimachinery/pkg/api/resource"

// Discovered is what a node has found at one path.
type Discovered struct {
	// Path of the entry, as pods mount it.
	Path string `json:"path"`
	// StorageClassName of its class.
	StorageClassName string `json:"storageClassName"`
	// Kind is Filesystem, Directory or Device; empty where there is nothing.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Size in bytes.
	// +optional
	Size resource.Quantity `json:"size,omitzero"`
	// Disk tells it from all others: the UUID of the file system, or the WWN or serial number.
	// +optional
	Disk string `json:"disk,omitempty"`
	// State is Ready, Provided, Cleaning, Cleaned, Kept, Refused or Missing.
	State DiscoveredState `json:"state"`
	// Offer is the number of its last offer. It grows each time that it becomes Ready: to the time in
	// seconds since 1970, by the node's clock, or by one where that is not more.
	// +optional
	Offer int64 `json:"offer,omitempty"`
	// PersistentVolume of it, where there is one.
	// +optional
	PersistentVolume string `json:"persistentVolume,omitempty"`
	// PersistentVolumeUID is that of the PersistentVolume.
	// +optional
	PersistentVolumeUID string `json:"persistentVolumeUID,omitempty"`
	// ClaimUID is that of the claim after which it was cleaned, where it is Cleaned.
	// +optional
	ClaimUID string `json:"claimUID,omitempty"`
	// Withdrawn says that the PersistentVolume can be deleted while no claim has it: it was made of
	// data that kubelet would format.
	// +optional
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Message says why in words.
	// +optional
	Message string `json:"message,omitempty"`
}

// DiscoveredState is what a node says of what it has found.
type DiscoveredState string

// The states of what was discovered.
const (
	// DiscoveredReady: a PersistentVolume may be made of it.
	DiscoveredReady DiscoveredState = "Ready"
	// DiscoveredProvided: it has a PersistentVolume, which is not released.
	DiscoveredProvided DiscoveredState = "Provided"
	// DiscoveredCleaning: its PersistentVolume was released, and it is being cleaned.
	DiscoveredCleaning DiscoveredState = "Cleaning"
	// DiscoveredCleaned: it is clean, and the PersistentVolume can be deleted.
	DiscoveredCleaned DiscoveredState = "Cleaned"
	// DiscoveredKept: its PersistentVolume was released and stays as it is.
	DiscoveredKept DiscoveredState = "Kept"
	// DiscoveredRefused: nothing is done with it; the message says why.
	DiscoveredRefused DiscoveredState = "Refused"
	// DiscoveredMissing: what its PersistentVolume was made of is not there.
	DiscoveredMissing DiscoveredState = "Missing"
)
