// Package replica is the contract between the controller of datasets, the provisioner and the node daemon: the
// names, labels and annotations of the replicas of a dataset. It does no I/O.
//
// A dataset is one volume of one VolumeManager. Its replicas are volumes of the same name
// on different nodes, each with its own claim and PersistentVolume. One more
// PersistentVolume, tied to a node label instead of a node, serves all readers of the
// dataset.
package replica

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The owner of the claim of a replica.
const (
	OwnerGroup   = "flexlvm.io"
	OwnerVersion = "v1"
	OwnerKind    = "VolumeManager"
	OwnerPlural  = "volumemanagers"
)

const (
	// LabelDataset holds the Hash of the dataset. It marks the claim of a replica, and is
	// on all PersistentVolumes of the dataset.
	LabelDataset = "flexlvm.io/dataset"
	// LabelShared, on a PersistentVolume for readers, holds the Hash of the dataset of another VolumeManager,
	// mostly of another namespace.
	LabelShared = "flexlvm.io/shared-dataset"
	// LabelOwner holds the UID of the VolumeManager; it is on the claims of replicas.
	LabelOwner = "flexlvm.io/volumemanager"
	// AnnotationVolumeID on the claim of a replica is the id of the volume in its owner.
	AnnotationVolumeID = "flexlvm.io/volume-id"
	// AnnotationEviction holds a volume.EvictionPolicy. It is on the claim of a replica,
	// and is copied to its PersistentVolume on creation.
	AnnotationEviction = "flexlvm.io/eviction-policy"
	// AnnotationWritable is Writable on the claim of a replica that consumers write to:
	// there is no other copy of its data.
	AnnotationWritable = "flexlvm.io/writable"
	// AnnotationReaders on the PersistentVolume of a replica is the name of the readers' claim, in the
	// namespace of the replica's claim.
	AnnotationReaders = "flexlvm.io/readers-claim"
	// AnnotationOwner on the PersistentVolume of a replica is the name of its VolumeManager, in the namespace
	// of its claim.
	AnnotationOwner = "flexlvm.io/volumemanager-name"
)

// AnnotationRefresh on a VolumeManager: when its value changes, its datasets are refreshed.
const AnnotationRefresh = "flexlvm.io/refresh"

// The state of a replica's load and eviction, on its PersistentVolume. The node daemon and the controller write
// in turn, and either may withdraw by removing annotations.
const (
	// AnnotationComplete is Complete once the controller knows that the whole dataset is loaded. Without it a
	// replica is not evicted.
	AnnotationComplete = "flexlvm.io/complete"
	// AnnotationEvict is when the daemon asked for the eviction of the replica, in RFC 3339.
	AnnotationEvict = "flexlvm.io/evict"
	// AnnotationUnlabelled is when the controller had removed the label from the node, in RFC 3339: the
	// scheduler sends no more pods there for the dataset.
	AnnotationUnlabelled = "flexlvm.io/unlabelled"
	// AnnotationEvictable is when the daemon had made sure that no pod of its node uses the replica, in RFC
	// 3339: the controller then deletes its claim.
	AnnotationEvictable = "flexlvm.io/evictable"
)

// Complete is the only value of AnnotationComplete.
const Complete = "true"

// Writable is the only value of AnnotationWritable.
const Writable = "true"

// NodeLabelValue is the value of the label that NodeLabel names.
const NodeLabelValue = "true"

const (
	volumePrefix  = "ds-"
	nodePrefix    = "flexlvm.io/ds-"
	readersPrefix = "flexlvm-ds-"
	hashDigits    = 16
)

// Hash identifies a dataset: 16 hexadecimal digits made from its VolumeManager's
// namespace and UID, and the id of the volume there. It is cryptographic, because users
// choose the ids and must not be able to cause collisions.
func Hash(namespace, uid, id string) string {
	// Neither a namespace nor a UID contains a slash, so the input is unique.
	sum := sha256.Sum256([]byte(namespace + "/" + uid + "/" + id))
	return hex.EncodeToString(sum[:])[:hashDigits]
}

// IsHash reports whether s may be a Hash.
func IsHash(s string) bool {
	return len(s) == hashDigits && strings.Trim(s, "0123456789abcdef") == ""
}

// maxID is the maximum length of the id of a volume. Real ids, even with a number appended, are far shorter.
const maxID = 128

// IsID reports whether id can be the id of a volume. It is read from an annotation, which may hold anything.
func IsID(id string) bool { return id != "" && len(id) <= maxID }

// VolumeName returns the name of every replica's logical volume.
func VolumeName(hash string) volume.Name { return volume.Name(volumePrefix + hash) }

// HashOf returns the Hash of the dataset whose replicas' volumes have this name; false if it is no VolumeName.
func HashOf(name string) (hash string, is bool) {
	hash, is = strings.CutPrefix(name, volumePrefix)
	return hash, is && IsHash(hash)
}

// IsVolumeName reports whether a name may be a VolumeName.
func IsVolumeName(name string) bool {
	_, is := HashOf(name)
	return is
}

// IsNodeLabel reports whether a label of a node is a NodeLabel.
func IsNodeLabel(label string) bool { return strings.HasPrefix(label, nodePrefix) }

// NodeLabel returns the label of the nodes that have the dataset.
func NodeLabel(hash string) string { return nodePrefix + hash }

// ReadersPV returns the name of the readers' PersistentVolume.
func ReadersPV(hash string) string { return readersPrefix + hash }

// ReadBy returns the Hash of the dataset whose readers' PersistentVolume has this name;
// false if there is none.
func ReadBy(persistentVolume string) (hash string, is bool) {
	hash, is = strings.CutPrefix(persistentVolume, readersPrefix)
	return hash, is && IsHash(hash)
}

// maxReadersClaim is the maximum length of the name of a readers' claim: some pods copy it into a label.
const maxReadersClaim = 63

// ReadersClaim returns the name of the readers' claim for the volume of this id of a
// VolumeManager: both names, shortened by Short if necessary.
func ReadersClaim(owner, id string) string { return Short(owner+"-"+id, maxReadersClaim) }

// Short returns name if it has at most maxLen characters, and otherwise its beginning and a hash of
// the whole. maxLen is 16 or more.
func Short(name string, maxLen int) string {
	const digits = 8
	if len(name) <= maxLen {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	head := strings.TrimRight(name[:maxLen-digits-1], "-.")
	return head + "-" + hex.EncodeToString(sum[:])[:digits]
}
