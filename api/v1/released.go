package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LastReleased is how many of those that were released last are listed as Released: of what is
// not listed, nothing was released after them. They are fewer where their names are long, and beside directory
// pools that cannot be looked into: what was released there comes after all others, and takes places of the list.
const LastReleased = 40

// A ReleasedVolume is one whose PersistentVolume was released. Its data is there until it is
// evicted.
type ReleasedVolume struct {
	// Pool that it lies in.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// State is unreferenced or retained.
	State string `json:"state"`
	// Namespace that it belongs to.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Size that the user could write.
	Size resource.Quantity `json:"size"`
	// Room that its eviction gives back to its pool.
	Room resource.Quantity `json:"room"`
	// LastUsed is when it was last mounted or unmounted, as far as the node knows.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Released is the time of its release.
	// +optional
	Released metav1.Time `json:"released,omitzero"`
	// Created is when it was made.
	// +optional
	Created metav1.Time `json:"created,omitzero"`
	// EvictionOrder is its place among those of its pool that may be evicted, from 1; 0 if
	// it may not.
	// +optional
	EvictionOrder int32 `json:"evictionOrder,omitempty"`
	// Kept says in one word why it may not be evicted: TooYoung, InUse, Wanted, Problem,
	// Retained, or Removing where it is being evicted.
	// +optional
	Kept string `json:"kept,omitempty"`
	// FilesystemUUID is the UUID of its file system: what undelete, retain and forget mean.
	// +optional
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	// FSType is the kind of its file system, if it is not xfs; "block" for a raw block volume.
	// +optional
	FSType string `json:"fsType,omitempty"`
	// Encrypted: it comes back with the Secret that holds its key.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// Kind is dataset for a replica of one, which its VolumeManager brings back.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Layout, if it is neither linear nor thin, with its numbers.
	// +optional
	Layout string `json:"layout,omitempty"`
	// Stripes is over how many devices it is striped.
	// +optional
	Stripes int32 `json:"stripes,omitempty"`
	// StripeSizeKiB is how much goes to one device before the next.
	// +optional
	StripeSizeKiB int32 `json:"stripeSizeKiB,omitempty"`
	// Mirrors are its copies beside the first.
	// +optional
	Mirrors int32 `json:"mirrors,omitempty"`
	// FullSize is what it takes from its pool once all of it is written, if that is not Room.
	// +optional
	FullSize resource.Quantity `json:"fullSize,omitzero"`
	// Reclaim is immediate if its class has it removed at once.
	// +optional
	Reclaim string `json:"reclaim,omitempty"`
	// Wipe is how its content is wiped before it is removed; empty if it is not.
	// +optional
	Wipe string `json:"wipe,omitempty"`
	// Origin is what its PersistentVolume said, as far as the daemon knows.
	// +optional
	Origin *ReleasedOrigin `json:"origin,omitempty"`
}

// A ReleasedOrigin is what the PersistentVolume of a volume said that its LVM tags do not
// hold. What is usual is left out.
type ReleasedOrigin struct {
	// Claim that was bound to it, in the volume's namespace.
	// +optional
	Claim string `json:"claim,omitempty"`
	// StorageClassName of the PersistentVolume.
	// +optional
	StorageClassName string `json:"storageClassName,omitempty"`
	// ReclaimPolicy if it was not Delete.
	// +optional
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`
	// Door is csi if the CSI driver mounted it.
	// +optional
	Door string `json:"door,omitempty"`
	// Inodes is its limit on inodes.
	// +optional
	Inodes int64 `json:"inodes,omitempty"`
	// OverprovisionRatio of its thin pool, if it is not 1.
	// +optional
	OverprovisionRatio string `json:"overprovisionRatio,omitempty"`
	// OnNodeLoss is release if its claim may be released when the node is lost.
	// +optional
	OnNodeLoss string `json:"onNodeLoss,omitempty"`
	// IOLimits is the annotation flexlvm.io/io-limits.
	// +optional
	IOLimits string `json:"ioLimits,omitempty"`
	// Trim is the annotation flexlvm.io/trim.
	// +optional
	Trim string `json:"trim,omitempty"`
	// AccessModes if they are not ReadWriteOnce alone.
	// +listType=atomic
	// +optional
	AccessModes []string `json:"accessModes,omitempty"`
	// MountOptions of a CSI volume.
	// +listType=atomic
	// +optional
	MountOptions []string `json:"mountOptions,omitempty"`
}

// Reasons for which a released volume is not evicted.
const (
	// KeptTooYoung: it was released less than --min-age ago.
	KeptTooYoung = "TooYoung"
	// KeptInUse: its device is open, it is mounted, or snapshots depend on it.
	KeptInUse = "InUse"
	// KeptWanted: a PersistentVolume names it, or is to begin as a copy of it.
	KeptWanted = "Wanted"
	// KeptProblem: it, or its pool, has a problem.
	KeptProblem = "Problem"
	// KeptRemoving: it is being removed, and the room that it holds is in Pool.Removing.
	KeptRemoving = "Removing"
	// KeptRetained: only a person can give it up.
	KeptRetained = "Retained"
)

// An EvictionPolicy is what the node daemon's flags say about evictions.
type EvictionPolicy struct {
	// HighThresholdPercent is the use of a pool that starts evicting; 100 never does.
	HighThresholdPercent int32 `json:"highThresholdPercent"`
	// LowThresholdPercent is the use at which evicting ends.
	LowThresholdPercent int32 `json:"lowThresholdPercent"`
	// MinAge is how long a volume is unreferenced before it may be evicted.
	// +kubebuilder:validation:Format=duration
	MinAge metav1.Duration `json:"minAge"`
	// MaxAge is how long a volume may be unreferenced; 0 means no limit.
	// +kubebuilder:validation:Format=duration
	MaxAge metav1.Duration `json:"maxAge"`
	// Headroom is how much of each volume group is kept free for claims to come, as
	// --headroom says it.
	// +optional
	Headroom string `json:"headroom,omitempty"`
}
