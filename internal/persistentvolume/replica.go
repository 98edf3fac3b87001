package persistentvolume

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Replica is what a PersistentVolume records of its dataset's replica and the replica's eviction.
type Replica struct {
	Dataset string                // replica.Hash; empty if the volume is no replica that may be evicted
	Policy  volume.EvictionPolicy // EvictNever also if it cannot be parsed
	// Complete: the replica holds the whole dataset.
	Complete bool
	Readers  string // the readers' claim, in the namespace of the replica's own claim
	Owner    string // its VolumeManager, in the same namespace
	OwnerUID string

	// When the eviction reached each step; zero: not yet.
	Asked      time.Time
	Unlabelled time.Time
	Evictable  time.Time
	// Garbled: one of these times cannot be parsed.
	Garbled bool
}

// Allowed reports whether a replica may be evicted: its dataset permits it and can restore it.
func (r Replica) Allowed() bool {
	return r.Policy == volume.EvictLRU && r.Complete && !r.Garbled
}

// Begun reports whether the eviction of a replica has begun, or may have.
func (r Replica) Begun() bool { return r.Garbled || !r.Asked.IsZero() }

// EvictionCommitted reports whether the eviction of a replica is past its last check for pods.
func (r Replica) EvictionCommitted() bool { return !r.Evictable.IsZero() && !r.Garbled }

// replicaAnnotations are the annotations that replicaOf reads.
var replicaAnnotations = []string{
	replica.AnnotationEviction, replica.AnnotationComplete, replica.AnnotationReaders, replica.AnnotationOwner,
	replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable,
}

// replicaOf reads what a PersistentVolume records of a replica. It never fails: anything that it does
// not understand only keeps the replica from being evicted.
func replicaOf(object *corev1.PersistentVolume, spec volume.Spec) Replica {
	hash := object.Labels[replica.LabelDataset]
	if spec.Kind != volume.Dataset || !replica.IsHash(hash) || spec.Name != replica.VolumeName(hash) {
		return Replica{}
	}
	r := Replica{
		Dataset:  hash,
		Policy:   volume.EvictNever,
		Complete: object.Annotations[replica.AnnotationComplete] == replica.Complete,
		Readers:  object.Annotations[replica.AnnotationReaders],
		Owner:    object.Annotations[replica.AnnotationOwner],
		OwnerUID: object.Labels[replica.LabelOwner],
	}
	if policy, err := volume.ParseEvictionPolicy(replica.AnnotationEviction, object.Annotations[replica.AnnotationEviction]); err == nil {
		r.Policy = policy
	}
	for name, into := range map[string]*time.Time{
		replica.AnnotationEvict: &r.Asked, replica.AnnotationUnlabelled: &r.Unlabelled, replica.AnnotationEvictable: &r.Evictable,
	} {
		text, there := object.Annotations[name]
		if !there {
			continue
		}
		at, err := time.Parse(time.RFC3339, text)
		*into = at.UTC()
		r.Garbled = r.Garbled || err != nil || at.IsZero()
	}
	return r
}
