package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeStorage is what one node knows of its pools and volumes. It bears the name
// of its node, is owned by it, and its status is written by the node daemon alone. Its spec
// is what people ask of the node: kubectl flexlvm writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,singular=nodestorage,path=nodestorages,shortName=nst,categories=flexlvm
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=flexlvm"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=definitions"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.status.summary.pools`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.summary.size`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.summary.used`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.summary.free`
// +kubebuilder:printcolumn:name="Reclaimable",type=string,JSONPath=`.status.summary.reclaimable`
// +kubebuilder:printcolumn:name="Promised",type=string,JSONPath=`.status.summary.promised`
// +kubebuilder:printcolumn:name="Volumes",type=integer,JSONPath=`.status.volumes`
// +kubebuilder:printcolumn:name="Orphans",type=integer,JSONPath=`.status.orphanCount`
// +kubebuilder:printcolumn:name="Pressure",type=string,JSONPath=`.status.conditions[?(@.type=="DiskPressure")].status`
// +kubebuilder:printcolumn:name="Shortfall",type=string,JSONPath=`.status.conditions[?(@.type=="Shortfall")].status`
// +kubebuilder:printcolumn:name="Seen",type=date,JSONPath=`.status.observedTime`
// +kubebuilder:printcolumn:name="Version",type=string,priority=1,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type NodeStorage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what people ask of the node.
	// +optional
	Spec NodeStorageSpec `json:"spec,omitzero"`
	// Status is what the node reports.
	// +optional
	Status NodeStorageStatus `json:"status,omitzero"`
}

// NodeStorageList is a list of NodeStorage.
//
// +kubebuilder:object:root=true
type NodeStorageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeStorage `json:"items"`
}

// MostDeclaredVolumes is how many NodeStorageStatus.DeclaredVolumes there may be.
const MostDeclaredVolumes = 256

// NodeStorageStatus is what the daemon saw in its last round.
type NodeStorageStatus struct {
	// ObservedTime is when the status last changed or was last confirmed.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitzero"`
	// Version of the daemon that wrote this.
	// +optional
	Version string `json:"version,omitempty"`
	// Summary of the pools for people: what `kubectl get nodestorages` shows.
	// +optional
	Summary Summary `json:"summary,omitzero"`
	// Volumes is how many volumes of flexlvm the node has, of every state.
	Volumes int32 `json:"volumes"`
	// OrphanCount is how many orphans the node has; Orphans may list fewer.
	OrphanCount int32 `json:"orphanCount"`
	// Pools of the node, one for each volume group and each thin pool of ours.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []Pool `json:"pools,omitempty"`
	// Orphans are volumes of this cluster without a PersistentVolume, and
	// volumes that a person must look at; the oldest first, at most 50.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=50
	Orphans []Orphan `json:"orphans,omitempty"`
	// Evictions are the last ones, the newest first, at most 20.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Evictions []Eviction `json:"evictions,omitempty"`
	// Released are volumes whose PersistentVolume was released, the newest first: the 40 that
	// were released last, and of each pool the first 10 in the order of eviction, at most 100. Those of
	// directory pools that cannot be looked into come after the others, which may then be fewer.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=100
	Released []ReleasedVolume `json:"released,omitempty"`
	// ReleasedCount is how many the node has; Released may list fewer.
	// +optional
	ReleasedCount int32 `json:"releasedCount,omitempty"`
	// EvictionPolicy is when the daemon evicts.
	// +optional
	EvictionPolicy *EvictionPolicy `json:"evictionPolicy,omitempty"`
	// Answers are what became of the requests in the spec, for as long as they are there.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Answers []VolumeAnswer `json:"answers,omitempty"`
	// CheckedTime is when the daemon last examined the node, as flexlvm doctor does.
	// +optional
	CheckedTime metav1.Time `json:"checkedTime,omitzero"`
	// CheckCount is how many checks it made; Checks are those that found something.
	// +optional
	CheckCount int32 `json:"checkCount,omitempty"`
	// Checks that found something, those with FAIL first, at most 20.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Checks []Check `json:"checks,omitempty"`
	// DeclaredGroups are the VolumeGroups that select this node, and what became of
	// each, at most 16.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=16
	DeclaredGroups []DeclaredGroup `json:"declaredGroups,omitempty"`
	// Discovered is what the VolumeDiscovery finds on this node, and what its PersistentVolumes
	// were made of, at most 256.
	// +listType=map
	// +listMapKey=path
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Discovered []Discovered `json:"discovered,omitempty"`
	// DiscoveredFrom is the VolumeDiscovery that Discovered follows from, as UID/GENERATION.
	// +optional
	DiscoveredFrom string `json:"discoveredFrom,omitempty"`
	// DeclaredVolumes are the volumes that LocalVolumes ask for on this node, at most 256.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=256
	DeclaredVolumes []DeclaredVolume `json:"declaredVolumes,omitempty"`
	// Conditions are Ready, DiskPressure and Shortfall; each says why in words.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a NodeStorage.
const (
	// ConditionReady: the node's tools are all there, and its daemon sees both LVM
	// and the API. Its message names what is missing.
	ConditionReady = "Ready"
	// ConditionDiskPressure: a pool is over its high threshold, or holds less free
	// space than the volumes promised on this node still need.
	ConditionDiskPressure = "DiskPressure"
	// ConditionShortfall: room is missing, and nothing left that may be evicted.
	ConditionShortfall = "Shortfall"
)

// Reasons of the condition Shortfall.
const (
	// ReasonRoomMissing, with status True: more is promised than the node can give, or
	// what should be evicted cannot be.
	ReasonRoomMissing = "RoomMissing"
	// ReasonFullOfVolumesInUse, with status False: volumes in use fill a pool beyond its
	// thresholds. Nothing is promised that they keep from being there.
	ReasonFullOfVolumesInUse = "FullOfVolumesInUse"
)

// Reasons of the condition Ready for which no volume can be made on the node.
const (
	// ReasonToolsMissing: the host lacks programs that are needed.
	ReasonToolsMissing = "ToolsMissing"
	// ReasonLVMFailed: LVM does not answer.
	ReasonLVMFailed = "LVMFailed"
)

// ReasonEvictionBlocked is the reason of the condition Ready where the API server seems to
// have lost its memory, and nothing is evicted.
const ReasonEvictionBlocked = "EvictionBlocked"

// ReasonOrphanEvictionBlocked is the reason of the condition Ready where the API server has gone back in
// time, and orphans, which would be evicted otherwise, are not.
const ReasonOrphanEvictionBlocked = "OrphanEvictionBlocked"

// Pool is where volumes are cut from. Quantities are bytes of the devices: the
// charge of a volume is its size and its file system's overhead.
type Pool struct {
	// Name of the volume group, GROUP/POOL for a thin pool, or GROUP:POOL for a directory pool.
	Name string `json:"name"`
	// UUID that LVM gave it.
	UUID string `json:"uuid"`
	// Layout is linear for a volume group, thin for a thin pool, directory for a directory pool.
	Layout string `json:"layout"`
	// Size of the whole pool.
	Size resource.Quantity `json:"size"`
	// Free is what no logical volume holds; of a directory pool, what no quota promises.
	Free resource.Quantity `json:"free"`
	// Reclaimable is what volumes hold that may be evicted.
	Reclaimable resource.Quantity `json:"reclaimable"`
	// Removing is what volumes hold that are being removed, which takes long where they are
	// wiped, and replicas that are given up: it will be free, and is in neither Free nor
	// Reclaimable.
	// +optional
	Removing resource.Quantity `json:"removing,omitzero"`
	// ReclaimableReplicas is how much of Reclaimable replicas of datasets hold. They go
	// for volumes of claims, and not for other replicas.
	// +optional
	ReclaimableReplicas resource.Quantity `json:"reclaimableReplicas,omitzero"`
	// Promised is what PersistentVolumes of this node still need: volumes that no
	// pod has mounted yet, and growth that has not happened yet.
	Promised resource.Quantity `json:"promised"`
	// Allocatable is what PersistentVolumes may take of the pool altogether, those
	// that have their volumes already included: Size less what others hold. Less the
	// charges of all PersistentVolumes of the node, it is what may be promised.
	// +optional
	Allocatable resource.Quantity `json:"allocatable,omitzero"`
	// DeviceFree is what is free on each physical device that room can be taken from,
	// the most first; layouts that need several devices go by it. At most 128.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DeviceFree []resource.Quantity `json:"deviceFree,omitempty"`
	// DeviceReclaimable is what volumes hold on each of these devices, in the same order,
	// that may be evicted or are being removed. It may be less than Reclaimable: where a
	// volume lies is not always known.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DeviceReclaimable []resource.Quantity `json:"deviceReclaimable,omitempty"`
	// RecentVolumes are those in use that were made last, the newest first: what
	// --headroom=auto keeps free goes by them. At most 8.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	RecentVolumes []RecentVolume `json:"recentVolumes,omitempty"`
	// ExtentSize is the grain in which the pool gives space.
	// +optional
	ExtentSize resource.Quantity `json:"extentSize,omitzero"`
	// Closed says why no new volume may be promised here; empty where one may.
	// +optional
	Closed string `json:"closed,omitempty"`
	// UsedPercent of Size, what may be evicted included.
	UsedPercent int32 `json:"usedPercent"`
	// BusyPercent is the share of time in which the busiest disk of the pool has
	// something to do, over some minutes, in steps of ten.
	// +optional
	BusyPercent int32 `json:"busyPercent,omitempty"`
	// VolumesByState counts the volumes of flexlvm.
	// +optional
	VolumesByState map[string]int32 `json:"volumesByState,omitempty"`
	// ForeignVolumes counts logical volumes that are not ours, or another cluster's.
	ForeignVolumes int32 `json:"foreignVolumes"`
	// MetadataUsedPercent is how full LVM's metadata area is.
	MetadataUsedPercent int32 `json:"metadataUsedPercent"`
	// ThinDataPercent is how full the data device of a thin pool is.
	// +optional
	ThinDataPercent *int32 `json:"thinDataPercent,omitempty"`
	// ThinMetadataPercent is how full the metadata device of a thin pool is.
	// +optional
	ThinMetadataPercent *int32 `json:"thinMetadataPercent,omitempty"`
	// MissingDevices of the volume group; with any missing, nothing is evicted.
	// +optional
	MissingDevices int32 `json:"missingDevices,omitempty"`
}

// RecentVolume is a volume that was made lately.
type RecentVolume struct {
	// Room that it takes from its pool.
	Room resource.Quantity `json:"room"`
	// Created is when it was made.
	Created metav1.Time `json:"created"`
}

// Check is what an examination of the node has found.
type Check struct {
	// Level is FAIL if the node cannot serve some or all volumes, else WARN.
	Level string `json:"level"`
	// Check that found it.
	Check string `json:"check"`
	// Detail in words.
	Detail string `json:"detail"`
	// Do says what to do about it.
	// +optional
	Do string `json:"do,omitempty"`
}

// Orphan is a volume without a PersistentVolume, or whose tags make no
// sense. It is left alone unless the daemon was told otherwise.
type Orphan struct {
	// Pool is the volume group that it lies in, also of a volume in a thin or directory pool.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// Kind is dataset for a replica and snapshot for a snapshot; empty for a claim's volume.
	// +optional
	Kind string `json:"kind,omitempty"`
	// State that its tags tell of.
	// +optional
	State string `json:"state,omitempty"`
	// Namespace that it belongs to.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Size that the user may write.
	Size resource.Quantity `json:"size"`
	// FilesystemUUID is the UUID of its file system.
	// +optional
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	// FSType is the kind of its file system, if it is not xfs; "block" for a raw block volume.
	// +optional
	FSType string `json:"fsType,omitempty"`
	// Encrypted: it comes back with the Secret that holds its key.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// Created is when LVM made it.
	// +optional
	Created metav1.Time `json:"created,omitzero"`
	// LastUsed is when it was last mounted or unmounted, as far as the node knows.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Problem in words, where there is more to it than a missing PersistentVolume.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// Eviction is a volume that was removed to make room, or because its time was up.
type Eviction struct {
	// Time of its removal.
	Time metav1.Time `json:"time"`
	// Pool is the volume group that it lay in, also of a volume in a thin or directory pool.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// Size that the user could write.
	Size resource.Quantity `json:"size"`
	// LastUsed is when it was last mounted or unmounted.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Reason in one word: Promised, HighThreshold, Headroom, MaxAge, Immediate, Replica or Orphan.
	Reason string `json:"reason"`
	// Message says why in words.
	Message string `json:"message"`
}
