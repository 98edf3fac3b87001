package persistentvolume

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Replica is what a PersistentVolume says about its dataset's replica and its eviction.
type Replica struct {
	Dataset string                // replica.Hash; empty: it is none, or none that may be evicted
	Policy  volume.EvictionPolicy // EvictNever also where it cannot be read
	// Complete: all of the dataset is there.
	Complete bool
	Readers  string // the claim by which it is read, in the namespace of its own
	Owner    string // its VolumeManager, in the same namespace
	OwnerUID string

	// When its eviction reached each step; zero: not yet.
	Asked      time.Time
	Unlabelled time.Time
	Evictable  time.Time
	// Garbled: one of these times cannot be parsed.
	Garbled bool
}

// Allowed reports whether the dataset of a replica allows its eviction and can restore
// it.
func (r Replica) Allowed() bool {
	return r.Policy == volume.EvictLRU && r.Complete && !r.Garbled
}

// Begun reports whether the eviction of a replica has begun, or may have.
func (r Replica) Begun() bool { return r.Garbled || !r.Asked.IsZero() }

// Going reports whether the eviction of a replica is past its last look at the pods.
func (r Replica) Going() bool { return !r.Evictable.IsZero() && !r.Garbled }

// replicaAnnotations are those that replicaOf reads.
var replicaAnnotations = []string{
	replica.AnnotationEviction, replica.AnnotationComplete, replica.AnnotationReaders, replica.AnnotationOwner,
	replica.AnnotationEvict, replica.AnnotationUnlabelled, replica.AnnotationEvictable,
}

// replicaOf reads what a PersistentVolume says of a replica. It never fails: what
// it does not understand keeps the replica from being evicted, and from nothing
// else.
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
