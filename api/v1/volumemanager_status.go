package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Messages of a VolumeManager and of a volume, word for word as VCK wrote them, because users' scripts wait for
// them.
const (
	MessagePending   = "Beginning sub-resource deployment"
	MessageRunning   = "successfully deployed all sub-resources"
	MessageFailed    = "failed to deploy all the sub-resources"
	MessageCompleted = "released all sub-resources"
	MessageSuccess   = "success" // of a volume
)

// VolumeManagerStatus is the observed state of a VolumeManager.
type VolumeManagerStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State of the VolumeManager. Running means that every replica of every volume is usable, or has been, and
	// at least one replica of each volume still is.
	// +optional
	State State `json:"state,omitempty"`
	// Message is one of four fixed sentences, one for each state. The messages of the volumes have the details.
	// +optional
	Message string `json:"message,omitempty"`
	// Summary of the volumes, as `kubectl get vm` shows it.
	// +optional
	Summary DatasetSummary `json:"summary,omitzero"`
	// Volumes in the order of the spec.
	// +listType=map
	// +listMapKey=id
	// +optional
	Volumes []VolumeStatus `json:"volumes,omitempty"`
	// Conditions are Ready, Loaded, Refreshed, Advice and Truncated. The message of each explains it.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a VolumeManager besides ConditionReady, which is true if every volume can be used on at least
// one node.
const (
	// ConditionLoaded: every replica of every volume is complete.
	ConditionLoaded = "Loaded"
	// ConditionRefreshed is false if a replica could not get the current version of its source and keeps the
	// previous one. The condition does not exist if nothing is refreshed.
	ConditionRefreshed = "Refreshed"
	// ConditionAdvice is true if there is advice, which its message holds: the spec has values that have to be
	// written differently, or a load found something that users should know.
	ConditionAdvice = "Advice"
	// ConditionTruncated is true if a volume has more replicas than its status lists.
	ConditionTruncated = "Truncated"
)

// DatasetSummary of the volumes for the columns of `kubectl get vm`, of which each shows a single value.
type DatasetSummary struct {
	// Ready is the number of usable replicas and the number of all replicas: 1/2.
	// +optional
	Ready string `json:"ready,omitempty"`
	// Progress of all replicas together: 45%.
	// +optional
	Progress string `json:"progress,omitempty"`
	// TimeLeft until everything is loaded, at the current speed: 2m30s.
	// +optional
	TimeLeft string `json:"timeLeft,omitempty"`
	// Files that are loaded, and the number of all files: 450/1000.
	// +optional
	Files string `json:"files,omitempty"`
	// Bytes that are loaded, and the number of all bytes: 1.2GiB/4GiB.
	// +optional
	Bytes string `json:"bytes,omitempty"`
	// Claims that pods use to mount the data.
	// +optional
	Claims string `json:"claims,omitempty"`
	// Version that the replicas hold; if they hold several, the number of replicas with each.
	// +optional
	Version string `json:"version,omitempty"`
	// Nodes that hold the data, complete or in part.
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// Message of the first volume that is not in the requested state.
	// +optional
	Message string `json:"message,omitempty"`
}

// VolumeSource is what a pod puts into its volumes: the only kind of core/v1.VolumeSource that is used here.
type VolumeSource struct {
	// +optional
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
}

// VolumeStatus is the observed state of one volume.
type VolumeStatus struct {
	// ID of the volume in the spec.
	ID string `json:"id"`
	// VolumeSource for pods that use the data.
	// +optional
	VolumeSource *VolumeSource `json:"volumeSource,omitempty"`
	// NodeAffinity of the nodes that hold the data. Pods do not need to copy it, because the claim's
	// PersistentVolume has it.
	// +optional
	NodeAffinity *corev1.NodeAffinity `json:"nodeAffinity,omitempty"`
	// Message is "success" if the volume is in the requested state, otherwise it explains what is missing.
	// +optional
	Message string `json:"message,omitempty"`
	// Replicas that are requested.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// ReadyReplicas is the number of usable replicas: complete or streaming.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Capacity that the replicas have at present.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Progress of all replicas together.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// Uploaded is where the content of the volume was uploaded to. It is set once the upload is verified and
	// stays until the volume is deleted.
	// +optional
	Uploaded string `json:"uploaded,omitempty"`
	// SharedClaims are the claims through which other namespaces read the volume, as NAMESPACE/NAME, at most
	// 50.
	// +listType=atomic
	// +optional
	SharedClaims []string `json:"sharedClaims,omitempty"`
	// Upload is how far the upload of consumers' changes is behind, if the option resync is set.
	// +optional
	Upload *UploadLag `json:"upload,omitempty"`
	// Versions counts the complete replicas by the version that they hold.
	// +optional
	Versions map[string]int32 `json:"versions,omitempty"`
	// States counts the replicas by state, if there are more than nodes lists.
	// +optional
	States map[ReplicaState]int32 `json:"states,omitempty"`
	// Failures are failed loads of replicas that nodes does not list.
	// +listType=atomic
	// +optional
	Failures []ReplicaFailure `json:"failures,omitempty"`
	// Nodes lists at most 50 replicas. If there are more, it lists displaced replicas, then failed ones, then
	// those with the lowest numbers.
	// +listType=atomic
	// +optional
	Nodes []ReplicaStatus `json:"nodes,omitempty"`
}

// UploadLag is how much of what consumers changed is not uploaded yet.
type UploadLag struct {
	// To is the destination of the upload.
	To string `json:"to"`
	// Known reports whether the loader that uploads has reported. Files and Bytes are not known before.
	Known bool `json:"known"`
	// Files whose current state in the volume is not at the destination yet.
	Files int64 `json:"files"`
	// Bytes of these files.
	Bytes int64 `json:"bytes"`
	// Message explains why the upload makes no progress. It is retried indefinitely.
	// +optional
	Message string `json:"message,omitempty"`
}

// Progress of loading.
type Progress struct {
	// Percent of the bytes, rounded down: 100 is all.
	Percent int32 `json:"percent"`
	// Files that are complete.
	Files int64 `json:"files"`
	// FilesTotal is the number of files in the source, as far as it was listed.
	// +optional
	FilesTotal int64 `json:"filesTotal,omitempty"`
	// Bytes that are loaded.
	Bytes int64 `json:"bytes"`
	// BytesTotal is the number of bytes in the source, as far as it was listed.
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// BytesPerSecond that are being loaded, while a loader runs.
	// +optional
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// SecondsLeft until everything is loaded at this speed; for several replicas, until the last one is.
	// +optional
	SecondsLeft int64 `json:"secondsLeft,omitempty"`
	// Changed is when the progress last changed. It is set for a single replica while its loader runs.
	// +optional
	Changed *metav1.Time `json:"changed,omitempty"`
}

// ReplicaState is the state of a replica.
type ReplicaState string

// The states of a replica.
const (
	ReplicaWaiting   ReplicaState = "Waiting"   // waits for a node, for room, or for its loader to start
	ReplicaLoading   ReplicaState = "Loading"   // its loader runs
	ReplicaStreaming ReplicaState = "Streaming" // its loader runs, and it is already usable
	ReplicaComplete  ReplicaState = "Complete"
	ReplicaFailed    ReplicaState = "Failed"
	ReplicaUploading ReplicaState = "Uploading" // is being uploaded to outputURL
	ReplicaDisplaced ReplicaState = "Displaced" // was displaced by another dataset, until a pod wants it
	ReplicaLeaving   ReplicaState = "Leaving"   // is being deleted: evicted, surplus, outdated, or released
)

// ReplicaFailure is the failed load of several replicas.
type ReplicaFailure struct {
	// Replicas are the numbers of these replicas: 50-99,120.
	Replicas string `json:"replicas"`
	// Attempt as in ReplicaStatus.
	Attempt string `json:"attempt"`
	// Message of the first of these replicas.
	// +optional
	Message string `json:"message,omitempty"`
}

// ReplicaStatus is the observed state of one replica.
type ReplicaStatus struct {
	// Claim whose volume holds the replica.
	Claim string `json:"claim"`
	// Node that the replica is on, once the scheduler has chosen it.
	// +optional
	Node string `json:"node,omitempty"`
	// State of the replica.
	State ReplicaState `json:"state"`
	// Message explains what the replica waits for or why it failed, in the loader's own words.
	// +optional
	Message string `json:"message,omitempty"`
	// Checked is how many files were verified by which check: md5: 3, size: 1.
	// +optional
	Checked string `json:"checked,omitempty"`
	// Revision of the source that the replica holds, if the source has revisions: a commit or a digest.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Version identifies the content that the replica holds and that new pods get: equal versions have the same
	// paths with the same content.
	// +optional
	Version string `json:"version,omitempty"`
	// OldVersions is the number of earlier versions that are kept because a pod was reading them when the last
	// loader ran.
	// +optional
	OldVersions int32 `json:"oldVersions,omitempty"`
	// RefreshedAt is when the source was last found to have this version.
	// +optional
	RefreshedAt *metav1.Time `json:"refreshedAt,omitempty"`
	// Refresh is the progress of the loader that fetches another version, while it runs.
	// +optional
	Refresh *Progress `json:"refresh,omitempty"`
	// Progress of its loader.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// StalledSince is the time since which no data has arrived although the loader runs.
	// +optional
	StalledSince *metav1.Time `json:"stalledSince,omitempty"`
	// TimeToReady is how long it took from the creation of the claim until everything was loaded.
	// +optional
	// +kubebuilder:validation:Format=duration
	TimeToReady *metav1.Duration `json:"timeToReady,omitempty"`
	// Attempt that failed, as a hash of everything that it depended on. The load is not retried until one of
	// these, or the annotation flexlvm.io/retry, changes.
	// +optional
	Attempt string `json:"attempt,omitempty"`
}
