package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LastReleased is how many of the most recently released volumes NodeStorageStatus.Released lists: every volume
// that is not listed was released before them. It lists fewer of them if their names are long, or if there are
// volume groups that the node does not see or directory pools that it cannot read: the volumes released there are
// listed last and count toward the limits of the list.
const LastReleased = 40

// A ReleasedVolume is a volume whose PersistentVolume was released. Its data is kept until the volume is
// evicted.
type ReleasedVolume struct {
	// Pool of the volume: a volume group, GROUP/POOL of a thin pool, or GROUP:POOL of a directory pool.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// State is unreferenced or retained.
	State string `json:"state"`
	// Namespace that the volume belongs to.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Size that pods could use, without the overhead of the file system.
	Size resource.Quantity `json:"size"`
	// Room that evicting the volume returns to its pool.
	Room resource.Quantity `json:"room"`
	// LastUsed is when the volume was last mounted or unmounted, as far as the node knows.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Released is when the volume was released.
	// +optional
	Released metav1.Time `json:"released,omitzero"`
	// Created is when the volume was created.
	// +optional
	Created metav1.Time `json:"created,omitzero"`
	// EvictionOrder is the volume's position, from 1, among the volumes of its pool that may be evicted; 0 if
	// it may not be evicted.
	// +optional
	EvictionOrder int32 `json:"evictionOrder,omitempty"`
	// Kept is the reason why the volume may not be evicted: TooYoung, InUse, Wanted, Problem, Retained, or
	// Removing if its eviction is in progress.
	// +optional
	Kept string `json:"kept,omitempty"`
	// FilesystemUUID is the UUID of its file system, by which undelete, retain and forget identify the volume.
	// +optional
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	// FSType is the type of its file system, if it is not xfs; "block" for a raw block volume.
	// +optional
	FSType string `json:"fsType,omitempty"`
	// Encrypted volumes can only be restored together with the Secret that holds their key.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// Kind is dataset for a replica of a dataset, which its VolumeManager creates again; empty for the volume
	// of a claim.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Layout, if it is not linear, thin or directory.
	// +optional
	Layout string `json:"layout,omitempty"`
	// Stripes is the number of devices that the volume is striped over.
	// +optional
	Stripes int32 `json:"stripes,omitempty"`
	// StripeSizeKiB is how much is written to one device before the next.
	// +optional
	StripeSizeKiB int32 `json:"stripeSizeKiB,omitempty"`
	// Mirrors is the number of copies besides the first.
	// +optional
	Mirrors int32 `json:"mirrors,omitempty"`
	// FullSize is the space that the volume takes from its pool once all of it is written, if that is not Room.
	// +optional
	FullSize resource.Quantity `json:"fullSize,omitzero"`
	// Reclaim is immediate if the class requires that the volume is removed immediately.
	// +optional
	Reclaim string `json:"reclaim,omitempty"`
	// Wipe is how the content is wiped before the volume is removed; empty if it is not wiped.
	// +optional
	Wipe string `json:"wipe,omitempty"`
	// Origin holds fields of the volume's PersistentVolume, as far as the daemon knows them.
	// +optional
	Origin *ReleasedOrigin `json:"origin,omitempty"`
}

// A ReleasedOrigin holds what a volume's PersistentVolume specified and its LVM tags do not. Defaults are left
// out.
type ReleasedOrigin struct {
	// Claim that was bound to the PersistentVolume, in the volume's namespace.
	// +optional
	Claim string `json:"claim,omitempty"`
	// StorageClassName of the PersistentVolume.
	// +optional
	StorageClassName string `json:"storageClassName,omitempty"`
	// ReclaimPolicy, if it was not Delete.
	// +optional
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`
	// Door is csi if the CSI driver mounted it.
	// +optional
	Door string `json:"door,omitempty"`
	// Inodes is the limit on inodes.
	// +optional
	Inodes int64 `json:"inodes,omitempty"`
	// OverprovisionRatio of the thin pool, if it is not 1.
	// +optional
	OverprovisionRatio string `json:"overprovisionRatio,omitempty"`
	// OnNodeLoss is release if the claim may be released when its node is lost.
	// +optional
	OnNodeLoss string `json:"onNodeLoss,omitempty"`
	// IOLimits is the value of the annotation flexlvm.io/io-limits.
	// +optional
	IOLimits string `json:"ioLimits,omitempty"`
	// Trim is the value of the annotation flexlvm.io/trim.
	// +optional
	Trim string `json:"trim,omitempty"`
	// AccessModes, if they are not ReadWriteOnce alone.
	// +listType=atomic
	// +optional
	AccessModes []string `json:"accessModes,omitempty"`
	// MountOptions of a CSI volume.
	// +listType=atomic
	// +optional
	MountOptions []string `json:"mountOptions,omitempty"`
}

// Reasons why a released volume is not evicted.
const (
	// KeptTooYoung: it was released less than --min-age ago.
	KeptTooYoung = "TooYoung"
	// KeptInUse: its device is open, it is mounted, or it has snapshots.
	KeptInUse = "InUse"
	// KeptWanted: a PersistentVolume names the volume, or is to be created as a copy of it.
	KeptWanted = "Wanted"
	// KeptProblem: the volume or its pool has a problem, or the node does not see its volume group.
	KeptProblem = "Problem"
	// KeptRemoving: the volume is being removed, and its room counts in Pool.Removing.
	KeptRemoving = "Removing"
	// KeptRetained: only a person can give the volume up.
	KeptRetained = "Retained"
)

// An EvictionPolicy holds the settings of the node daemon's flags for evictions.
type EvictionPolicy struct {
	// HighThresholdPercent is the usage of a pool at which evictions start; with 100 they never do.
	HighThresholdPercent int32 `json:"highThresholdPercent"`
	// LowThresholdPercent is the usage at which evictions stop.
	LowThresholdPercent int32 `json:"lowThresholdPercent"`
	// MinAge is how long a volume has to be unreferenced before it may be evicted.
	// +kubebuilder:validation:Format=duration
	MinAge metav1.Duration `json:"minAge"`
	// MaxAge is how long a volume may be unreferenced before it is evicted; 0 means no limit.
	// +kubebuilder:validation:Format=duration
	MaxAge metav1.Duration `json:"maxAge"`
	// Headroom is how much of each volume group is kept free for new claims, in the format of --headroom.
	// +optional
	Headroom string `json:"headroom,omitempty"`
}
