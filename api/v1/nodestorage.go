package v1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeStorage reports the pools and volumes of one node. It has the name of its node and is owned by it. Only
// the node daemon writes its status. Its spec holds requests of users, which kubectl flexlvm writes.
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

	// Spec holds the requests of users to the node.
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

// ReportInterval, plus jitter, is how often a node daemon writes its NodeStorage without a change, so that its
// readers can tell a quiet node from a dead one.
const ReportInterval = 5 * time.Minute

// MaxReportAge is the maximum age of a report: the node daemon that wrote an older one does not work.
const MaxReportAge = 3 * ReportInterval

// MaxDeclaredVolumes is the maximum length of NodeStorageStatus.DeclaredVolumes.
const MaxDeclaredVolumes = 256

// MaxOrphans is the maximum length of NodeStorageStatus.Orphans.
const MaxOrphans = 50

// MaxPoolDevices is the maximum length of Pool.DeviceFree and of Pool.DeviceReclaimable. No layout needs more
// devices.
const MaxPoolDevices = 128

// NodeStorageStatus is what the node daemon observed in its last reconcile pass.
type NodeStorageStatus struct {
	// ObservedTime is when the status last changed or was last confirmed.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitzero"`
	// Version of the daemon that wrote this status.
	// +optional
	Version string `json:"version,omitempty"`
	// Summary of the pools, as `kubectl get nodestorages` shows it.
	// +optional
	Summary Summary `json:"summary,omitzero"`
	// Volumes is the number of flexlvm volumes on the node, in any state.
	Volumes int32 `json:"volumes"`
	// OrphanCount is the number of orphans and of volumes with a problem. Orphans may list fewer.
	OrphanCount int32 `json:"orphanCount"`
	// Pools of the node: one for each volume group, and one for each thin pool and directory pool that flexlvm
	// uses.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []Pool `json:"pools,omitempty"`
	// Orphans are volumes of this cluster without a PersistentVolume, and volumes that a person has to look at;
	// oldest first, at most 50. Those of volume groups that the node does not see at present, and of directory
	// pools that it cannot read, follow at the end.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=50
	Orphans []Orphan `json:"orphans,omitempty"`
	// Evictions are the most recent evictions, newest first, at most 20.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Evictions []Eviction `json:"evictions,omitempty"`
	// Released are volumes whose PersistentVolume was released, newest first, at most 100: the 40 that were
	// released last, and the first 10 of each pool in the order of eviction. Volumes of volume groups that the
	// node does not see at present, and of directory pools that it cannot read, follow at the end, and fewer of
	// the others may be listed then.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=100
	Released []ReleasedVolume `json:"released,omitempty"`
	// ReleasedCount is the number of released volumes on the node. Released may list fewer.
	// +optional
	ReleasedCount int32 `json:"releasedCount,omitempty"`
	// EvictionPolicy is the policy by which the daemon evicts volumes.
	// +optional
	EvictionPolicy *EvictionPolicy `json:"evictionPolicy,omitempty"`
	// Answers are the results of the requests in the spec. Each is kept as long as its request is in the spec.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Answers []VolumeAnswer `json:"answers,omitempty"`
	// CheckedTime is when the daemon last checked the node, as flexlvm doctor does.
	// +optional
	CheckedTime metav1.Time `json:"checkedTime,omitzero"`
	// CheckCount is the number of checks that were run. Checks lists those that found something.
	// +optional
	CheckCount int32 `json:"checkCount,omitempty"`
	// Checks that found something, those with FAIL first, at most 20.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=20
	Checks []Check `json:"checks,omitempty"`
	// DeclaredGroups are the VolumeGroups that select this node, each with its result, at most 16.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=16
	DeclaredGroups []DeclaredGroup `json:"declaredGroups,omitempty"`
	// Discovered are the entries that the VolumeDiscovery finds on this node, and those that PersistentVolumes
	// were created from, at most 256.
	// +listType=map
	// +listMapKey=path
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Discovered []Discovered `json:"discovered,omitempty"`
	// DiscoveredFrom identifies the VolumeDiscovery that Discovered is based on, as UID/GENERATION.
	// +optional
	DiscoveredFrom string `json:"discoveredFrom,omitempty"`
	// DeclaredVolumes are the volumes of LocalVolumes on this node that no claim is bound to yet, at most 256.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=256
	DeclaredVolumes []DeclaredVolume `json:"declaredVolumes,omitempty"`
	// Conditions are Ready, DiskPressure and Shortfall. The message of each explains it.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a NodeStorage.
const (
	// ConditionReady: all programs that the daemon needs are installed on the node, and the daemon reaches both
	// LVM and the API server. The message names what is missing.
	ConditionReady = "Ready"
	// ConditionDiskPressure: a pool is at or over its high threshold, or has less free space than the volumes
	// promised on it still need.
	ConditionDiskPressure = "DiskPressure"
	// ConditionShortfall: room is missing, and no volume is left that may be evicted.
	ConditionShortfall = "Shortfall"
)

// Reasons of the condition Shortfall.
const (
	// ReasonRoomMissing, with status True: more is promised than the node can provide, or volumes that should
	// be evicted cannot be.
	ReasonRoomMissing = "RoomMissing"
	// ReasonRemovalsFail, with status False: all promised volumes fit, but several removals in a pool have failed, so
	// no more volumes are evicted for its room, and claims that need such room wait.
	ReasonRemovalsFail = "RemovalsFail"
	// ReasonFullOfVolumesInUse, with status False: volumes in use fill a pool beyond its thresholds, but all
	// promised volumes still fit.
	ReasonFullOfVolumesInUse = "FullOfVolumesInUse"
)

// Reasons of the condition Ready with which no volume can be created on the node.
const (
	// ReasonToolsMissing: programs that are needed are not installed on the host.
	ReasonToolsMissing = "ToolsMissing"
	// ReasonLVMFailed: LVM commands fail.
	ReasonLVMFailed = "LVMFailed"
)

// ReasonAPIUnavailable is the reason of the condition Ready if the node daemon cannot read what it needs from the API
// server.
const ReasonAPIUnavailable = "APIUnavailable"

// ReasonNoPools is the reason of the condition Ready if LVM works and sees no volume group.
const ReasonNoPools = "NoPools"

// ReasonEvictionBlocked is the reason of the condition Ready if the API server seems to have lost objects. No
// volume is evicted then.
const ReasonEvictionBlocked = "EvictionBlocked"

// ReasonOrphanEvictionBlocked is the reason of the condition Ready if the API server has gone back in time, as
// after a restore from a backup. Orphans that would be evicted otherwise are kept then.
const ReasonOrphanEvictionBlocked = "OrphanEvictionBlocked"

// Pool is a volume group, thin pool or directory pool that volumes are allocated from. Quantities are bytes of
// the devices: the charge of a volume is its size plus its file system's overhead.
type Pool struct {
	// Name of the volume group, GROUP/POOL of a thin pool, or GROUP:POOL of a directory pool.
	Name string `json:"name"`
	// UUID that LVM assigned to the pool.
	UUID string `json:"uuid"`
	// Layout is linear for a volume group, thin for a thin pool, and directory for a directory pool.
	Layout string `json:"layout"`
	// Size of the whole pool.
	Size resource.Quantity `json:"size"`
	// Free is the space that no logical volume holds; in a directory pool, the space that no quota promises.
	Free resource.Quantity `json:"free"`
	// Reclaimable is the space held by volumes that may be evicted.
	Reclaimable resource.Quantity `json:"reclaimable"`
	// Removing is the space held by volumes that are being removed, which takes long if they are wiped, and by
	// replicas that were given up. It will become free, and is in neither Free nor Reclaimable.
	// +optional
	Removing resource.Quantity `json:"removing,omitzero"`
	// ReclaimableReplicas is the part of Reclaimable that replicas of datasets hold. They are evicted for
	// volumes of claims, not for other replicas.
	// +optional
	ReclaimableReplicas resource.Quantity `json:"reclaimableReplicas,omitzero"`
	// Promised is the space that PersistentVolumes of this node still need: for volumes that have not been
	// created yet, and for growth that has not happened yet.
	Promised resource.Quantity `json:"promised"`
	// Allocatable is the space that PersistentVolumes may take of the pool in total, including those whose
	// volumes already exist: Size minus what others hold. Allocatable minus the charges of all
	// PersistentVolumes of the node is what may still be promised.
	// +optional
	Allocatable resource.Quantity `json:"allocatable,omitzero"`
	// DeviceFree is the free space of each physical device that volumes can be allocated on, largest first. The
	// capacity for layouts that need several devices is computed from it. At most 128.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DeviceFree []resource.Quantity `json:"deviceFree,omitempty"`
	// DeviceReclaimable is the space on each of these devices, in the same order, held by volumes that may be
	// evicted or are being removed. It may add up to less than Reclaimable, because it is not always known on
	// which devices a volume lies.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DeviceReclaimable []resource.Quantity `json:"deviceReclaimable,omitempty"`
	// RecentVolumes are the most recently created volumes in use, newest first. --headroom=auto keeps as much
	// room free as they take. At most 8.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	RecentVolumes []RecentVolume `json:"recentVolumes,omitempty"`
	// ExtentSize is the unit in which the pool allocates space.
	// +optional
	ExtentSize resource.Quantity `json:"extentSize,omitzero"`
	// Closed is the reason why no new volume may be promised in the pool; empty if new volumes may be.
	// +optional
	Closed string `json:"closed,omitempty"`
	// RemovalsFail: two or more volumes of the pool that were given up could not be removed. Until that is corrected,
	// no volume is evicted for its room, and the room of evictable volumes is not offered to claims.
	// +optional
	RemovalsFail bool `json:"removalsFail,omitempty"`
	// UsedPercent is how much of Size is used, including volumes that may be evicted.
	UsedPercent int32 `json:"usedPercent"`
	// BusyPercent is the share of time during which the busiest disk of the pool has I/O in progress, averaged
	// over a few minutes, in steps of ten.
	// +optional
	BusyPercent int32 `json:"busyPercent,omitempty"`
	// VolumesByState counts the volumes of this cluster by state.
	// +optional
	VolumesByState map[string]int32 `json:"volumesByState,omitempty"`
	// ForeignVolumes counts logical volumes that are not flexlvm's, or are another cluster's.
	ForeignVolumes int32 `json:"foreignVolumes"`
	// MetadataUsedPercent is how full the usable half of the volume group's LVM metadata area is.
	MetadataUsedPercent int32 `json:"metadataUsedPercent"`
	// ThinDataPercent is how full the data device of a thin pool is.
	// +optional
	ThinDataPercent *int32 `json:"thinDataPercent,omitempty"`
	// ThinMetadataPercent is how full the metadata device of a thin pool is.
	// +optional
	ThinMetadataPercent *int32 `json:"thinMetadataPercent,omitempty"`
	// MissingDevices is the number of missing devices of the volume group. If any is missing, no volume of the
	// group is evicted.
	// +optional
	MissingDevices int32 `json:"missingDevices,omitempty"`
}

// RecentVolume is a volume that was created recently.
type RecentVolume struct {
	// Room that the volume takes from its pool.
	Room resource.Quantity `json:"room"`
	// Created is when the volume was created.
	Created metav1.Time `json:"created"`
}

// Check is a finding of the checks that the daemon runs on the node, as flexlvm doctor does.
type Check struct {
	// Level is FAIL if the node cannot serve some or all volumes, otherwise WARN.
	Level string `json:"level"`
	// Check is the name of the check.
	Check string `json:"check"`
	// Detail describes the finding.
	Detail string `json:"detail"`
	// Do is what to do about it.
	// +optional
	Do string `json:"do,omitempty"`
}

// Orphan is a volume without a PersistentVolume, or with invalid tags. It is kept unless the daemon runs with
// --evict-orphans.
type Orphan struct {
	// Pool is the volume group of the orphan, also if the orphan is in a thin or directory pool.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// Kind is dataset for a replica of a dataset, snapshot for a snapshot, and empty for the volume of a claim.
	// +optional
	Kind string `json:"kind,omitempty"`
	// State of the volume, as its tags record it.
	// +optional
	State string `json:"state,omitempty"`
	// Namespace that the volume belongs to.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Size that pods can use, without the overhead of the file system.
	Size resource.Quantity `json:"size"`
	// Layout is directory for a volume in a directory pool, and empty for others.
	// +optional
	Layout string `json:"layout,omitempty"`
	// FilesystemUUID is the UUID of its file system.
	// +optional
	FilesystemUUID string `json:"filesystemUUID,omitempty"`
	// FSType is the type of its file system, if it is not xfs; "block" for a raw block volume.
	// +optional
	FSType string `json:"fsType,omitempty"`
	// Encrypted volumes can only be restored together with the Secret that holds their key.
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`
	// Created is when the logical volume was created.
	// +optional
	Created metav1.Time `json:"created,omitzero"`
	// LastUsed is when the volume was last mounted or unmounted, as far as the node knows.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Problem describes what is wrong with the volume, beyond a missing PersistentVolume.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// Eviction is a volume that was removed to make room, or because its class or an age limit required it.
type Eviction struct {
	// Time when the volume was removed.
	Time metav1.Time `json:"time"`
	// Pool is the volume group of the volume, also if the volume was in a thin or directory pool.
	Pool string `json:"pool"`
	// Name of the logical volume.
	Name string `json:"name"`
	// Size that pods can use, without the overhead of the file system.
	Size resource.Quantity `json:"size"`
	// LastUsed is when the volume was last mounted or unmounted.
	// +optional
	LastUsed metav1.Time `json:"lastUsed,omitzero"`
	// Reason is Promised, HighThreshold, Headroom, LVMMetadata, MaxAge, Immediate, Replica or Orphan.
	Reason string `json:"reason"`
	// Message explains the reason.
	Message string `json:"message"`
}
