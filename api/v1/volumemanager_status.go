package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Messages of a VolumeManager and of a volume, word by word as VCK wrote them:
// people's scripts wait for them.
const (
	MessagePending   = "Beginning sub-resource deployment"
	MessageRunning   = "successfully deployed all sub-resources"
	MessageFailed    = "failed to deploy all the sub-resources"
	MessageCompleted = "released all sub-resources"
	MessageSuccess   = "success" // of a volume
)

// VolumeManagerStatus is what there is.
type VolumeManagerStatus struct {
	// ObservedGeneration is the generation of the spec that this tells of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State of the whole. Running: every replica of every volume can be used, or has
	// been able to and at least one of each still is.
	// +optional
	State State `json:"state,omitempty"`
	// Message is one of four sentences, one for each state; the volumes say more.
	// +optional
	Message string `json:"message,omitempty"`
	// Summary for people: what `kubectl get vm` shows.
	// +optional
	Summary DatasetSummary `json:"summary,omitzero"`
	// Volumes in the order of the spec.
	// +listType=map
	// +listMapKey=id
	// +optional
	Volumes []VolumeStatus `json:"volumes,omitempty"`
	// Conditions are Ready, Loaded, Refreshed, Advice and Truncated; each says why in words.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of a VolumeManager beside ConditionReady, which is true when every
// volume can be used on one node at least.
const (
	// ConditionLoaded: every replica of every volume is complete.
	ConditionLoaded = "Loaded"
	// ConditionRefreshed is false if a replica could not get the version that its source has; it
	// keeps the one before. There is none if nothing is refreshed.
	ConditionRefreshed = "Refreshed"
	// ConditionAdvice: the spec has words that mean something else now or have to be
	// written otherwise, or a load met something that people should know. It is true if
	// there is such advice, which its message holds.
	ConditionAdvice = "Advice"
	// ConditionTruncated is true if a volume has more replicas than its status tells of.
	ConditionTruncated = "Truncated"
)

// DatasetSummary is for people: a column of `kubectl get vm` shows one value and no
// more, so what the volumes say is put together here.
type DatasetSummary struct {
	// Ready is how many replicas can be used, of how many: 1/2.
	// +optional
	Ready string `json:"ready,omitempty"`
	// Progress of all replicas together: 45%.
	// +optional
	Progress string `json:"progress,omitempty"`
	// TimeLeft until all is loaded, at the speed of now: 2m30s.
	// +optional
	TimeLeft string `json:"timeLeft,omitempty"`
	// Files that are loaded, of how many.
	// +optional
	Files string `json:"files,omitempty"`
	// Bytes that are loaded, of how many: 1.2GiB/4GiB.
	// +optional
	Bytes string `json:"bytes,omitempty"`
	// Claims that pods name.
	// +optional
	Claims string `json:"claims,omitempty"`
	// Version that the replicas hold; if there are several, how many hold each.
	// +optional
	Version string `json:"version,omitempty"`
	// Nodes that hold the data, complete or in part.
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// Message of the first volume that is not as asked for.
	// +optional
	Message string `json:"message,omitempty"`
}

// VolumeSource is what a pod writes into its volumes: the one kind of
// core/v1.VolumeSource that is given out here.
type VolumeSource struct {
	// +optional
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
}

// VolumeStatus is what there is of one volume.
type VolumeStatus struct {
	// ID of the volume in the spec.
	ID string `json:"id"`
	// VolumeSource for pods that use the data.
	// +optional
	VolumeSource *VolumeSource `json:"volumeSource,omitempty"`
	// NodeAffinity of the nodes that hold the data. Pods need not copy it: the claim
	// brings it along.
	// +optional
	NodeAffinity *corev1.NodeAffinity `json:"nodeAffinity,omitempty"`
	// Message is "success" when all is as asked for, else what is not.
	// +optional
	Message string `json:"message,omitempty"`
	// Replicas that are asked for.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// ReadyReplicas can be used: they are complete, or streaming.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Capacity of each replica, by now.
	// +optional
	Capacity *resource.Quantity `json:"capacity,omitempty"`
	// Progress of all replicas together.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// Uploaded is where the content of the volume was uploaded to, from when that is
	// verified until the volume is gone.
	// +optional
	Uploaded string `json:"uploaded,omitempty"`
	// SharedClaims are the claims by which other namespaces read it, as NAMESPACE/NAME, up to 50.
	// +listType=atomic
	// +optional
	SharedClaims []string `json:"sharedClaims,omitempty"`
	// Upload is how far the upload of what consumers change is behind, with resync.
	// +optional
	Upload *UploadLag `json:"upload,omitempty"`
	// ResyncFetches is the option resync, if it means to fetch what changes in the source, as
	// it did in earlier versions. It does until it is edited.
	// +optional
	ResyncFetches string `json:"resyncFetches,omitempty"`
	// Versions counts the complete replicas by the version that they hold.
	// +optional
	Versions map[string]int32 `json:"versions,omitempty"`
	// States counts the replicas by state, where there are more than nodes tells of.
	// +optional
	States map[ReplicaState]int32 `json:"states,omitempty"`
	// Failures are loads that failed of replicas that nodes does not list.
	// +listType=atomic
	// +optional
	Failures []ReplicaFailure `json:"failures,omitempty"`
	// Nodes lists the replicas, 50 at most: those that were displaced, then those that failed, then the
	// first.
	// +listType=atomic
	// +optional
	Nodes []ReplicaStatus `json:"nodes,omitempty"`
}

// UploadLag is what consumers changed and is not uploaded yet.
type UploadLag struct {
	// To is where it is uploaded to.
	To string `json:"to"`
	// Known is whether the loader that uploads has told.
	Known bool `json:"known"`
	// Files that are not there as they are here.
	Files int64 `json:"files"`
	// Bytes of these files.
	Bytes int64 `json:"bytes"`
	// Message says why it does not get on; it is tried again for ever.
	// +optional
	Message string `json:"message,omitempty"`
}

// Progress of loading.
type Progress struct {
	// Percent of the bytes, rounded down: 100 is all.
	Percent int32 `json:"percent"`
	// Files that are complete.
	Files int64 `json:"files"`
	// FilesTotal as far as the source was listed.
	// +optional
	FilesTotal int64 `json:"filesTotal,omitempty"`
	// Bytes that are loaded.
	Bytes int64 `json:"bytes"`
	// BytesTotal as far as the source was listed.
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// BytesPerSecond that arrive, while a loader runs.
	// +optional
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// SecondsLeft until all is loaded, at this speed; of several replicas, until the last is.
	// +optional
	SecondsLeft int64 `json:"secondsLeft,omitempty"`
	// Changed is when more was loaded the last time, of one replica while its loader runs.
	// +optional
	Changed *metav1.Time `json:"changed,omitempty"`
}

// ReplicaState is where a replica stands.
type ReplicaState string

// The states of a replica.
const (
	ReplicaWaiting   ReplicaState = "Waiting"   // for a node, for room, or for its loader to start
	ReplicaLoading   ReplicaState = "Loading"   // its loader runs
	ReplicaStreaming ReplicaState = "Streaming" // its loader runs, and it can be used
	ReplicaComplete  ReplicaState = "Complete"
	ReplicaFailed    ReplicaState = "Failed"
	ReplicaUploading ReplicaState = "Uploading" // to outputURL
	ReplicaDisplaced ReplicaState = "Displaced" // by another dataset, until a pod wants it
	ReplicaLeaving   ReplicaState = "Leaving"   // evicted, surplus, outdated, or released
)

// ReplicaFailure is a load that failed of several replicas.
type ReplicaFailure struct {
	// Replicas by their numbers: 50-99,120.
	Replicas string `json:"replicas"`
	// Attempt as in ReplicaStatus.
	Attempt string `json:"attempt"`
	// Message of the first of them.
	// +optional
	Message string `json:"message,omitempty"`
}

// ReplicaStatus is what there is of one replica.
type ReplicaStatus struct {
	// Claim that holds it.
	Claim string `json:"claim"`
	// Node that it lies on, once the scheduler has chosen.
	// +optional
	Node string `json:"node,omitempty"`
	// State in one word.
	State ReplicaState `json:"state"`
	// Message says what it waits for or why it failed, in the loader's own words.
	// +optional
	Message string `json:"message,omitempty"`
	// Checked is by which checks its files were verified: md5: 3, size: 1.
	// +optional
	Checked string `json:"checked,omitempty"`
	// Revision of the source that it holds, where the source has revisions: a commit, or a
	// digest.
	// +optional
	Revision string `json:"revision,omitempty"`
	// Version identifies what it holds, and pods that start get: the same is the same paths with
	// the same content.
	// +optional
	Version string `json:"version,omitempty"`
	// OldVersions is how many versions from before are kept because a pod read them when the last
	// loader came.
	// +optional
	OldVersions int32 `json:"oldVersions,omitempty"`
	// RefreshedAt is when its source was last seen to have this version.
	// +optional
	RefreshedAt *metav1.Time `json:"refreshedAt,omitempty"`
	// Refresh is how far the loader is that fetches another version, while it does.
	// +optional
	Refresh *Progress `json:"refresh,omitempty"`
	// Progress of its loader.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// StalledSince is since when nothing arrives although its loader runs.
	// +optional
	StalledSince *metav1.Time `json:"stalledSince,omitempty"`
	// TimeToReady is how long it took from its claim's creation until all was loaded.
	// +optional
	// +kubebuilder:validation:Format=duration
	TimeToReady *metav1.Duration `json:"timeToReady,omitempty"`
	// Attempt that failed, by a hash of all that it depended on: it is not made again
	// before something of that changes, or the annotation flexlvm.io/retry.
	// +optional
	Attempt string `json:"attempt,omitempty"`
}
