package migration

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// placeholderSuffix is appended to the name of the PersistentVolume that is replaced.
const placeholderSuffix = "-door"

// placeholderName returns the name of the placeholder for a PersistentVolume.
func placeholderName(volume string) string { return volume + placeholderSuffix }

// A record holds what a placeholder stores about the new PersistentVolume in addition to its own spec.
type record struct {
	Name        string                               `json:"name"`
	Claim       types.UID                            `json:"claimUID"`
	Policy      corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy"`
	Capacity    corev1.ResourceList                  `json:"capacity"`
	Labels      map[string]string                    `json:"labels,omitempty"`
	Annotations map[string]string                    `json:"annotations,omitempty"`
}

// recordOf returns the record of a PersistentVolume in its current state.
func recordOf(object *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, policy corev1.PersistentVolumeReclaimPolicy) record {
	r := record{
		Name: object.Name, Claim: claim.UID, Policy: policy,
		Capacity: object.Spec.Capacity, Labels: object.Labels, Annotations: maps.Clone(object.Annotations),
	}
	delete(r.Annotations, pv.AnnotationRetainedFor)
	// The annotation is a remnant of a finished growth, and would reset the claim's capacity when it is bound
	// again.
	if has, now := claim.Status.Capacity[corev1.ResourceStorage], object.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(now) >= 0 {
		delete(r.Annotations, pv.AnnotationPreResizeCapacity)
	}
	return r
}

// policyOf returns the reclaim policy that the new PersistentVolume of a placeholder's volume gets: that
// of the old one, unless the migration has set it to Retain (AnnotationRetainedFor), and then the one on
// record. Retain without that annotation was set by a user and stays.
func policyOf(object, placeholder *corev1.PersistentVolume, r record) corev1.PersistentVolumeReclaimPolicy {
	if object.Annotations[pv.AnnotationRetainedFor] == string(placeholder.UID) {
		return r.Policy
	}
	return object.Spec.PersistentVolumeReclaimPolicy
}

func (r record) text() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

// readRecord returns the record of a placeholder, after checking that it is for this claim.
func readRecord(placeholder *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (record, error) {
	var r record
	text, there := placeholder.Annotations[pv.AnnotationReplaces]
	if !there || !persistentvolume.IsOurs(placeholder) {
		return r, fmt.Errorf("PersistentVolume %s has the placeholder's name but is not a placeholder; delete it, if it is not needed", placeholder.Name)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, fmt.Errorf("read annotation %s of PersistentVolume %s: %w", pv.AnnotationReplaces, placeholder.Name, err)
	}
	switch {
	case r.Claim != claim.UID:
		return r, fmt.Errorf("PersistentVolume %s is the placeholder of an earlier claim of this name, which was deleted while its volume moved to the other driver; it keeps that volume. Delete it once the data is not needed", placeholder.Name)
	case r.Name != claim.Spec.VolumeName || placeholderName(r.Name) != placeholder.Name:
		return r, fmt.Errorf("PersistentVolume %s is the placeholder of PersistentVolume %s, but claim %s/%s has PersistentVolume %s", placeholder.Name, r.Name, claim.Namespace, claim.Name, claim.Spec.VolumeName)
	case r.Policy != corev1.PersistentVolumeReclaimDelete && r.Policy != corev1.PersistentVolumeReclaimRetain:
		return r, fmt.Errorf("the placeholder PersistentVolume %s has the reclaim policy %q in its annotation %s; set Delete or Retain there", placeholder.Name, r.Policy, pv.AnnotationReplaces)
	}
	return r, nil
}

// StandsIn reports whether object is the placeholder for the PersistentVolume of this claim.
func StandsIn(object *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	_, err := readRecord(object, claim)
	return err == nil
}

// newPlaceholder returns the placeholder of a PersistentVolume. No claim can be bound to it: its claimRef has
// the UID of the old PersistentVolume, which no claim has. So Kubernetes sets it to Released, and by its policy
// it keeps the volume without reserving additional room.
func newPlaceholder(object *corev1.PersistentVolume, door pv.Door, r record) (*corev1.PersistentVolume, error) {
	text, err := r.text()
	if err != nil {
		return nil, err
	}
	name := placeholderName(object.Name)
	source, err := persistentvolume.SourceFor(object, door, name)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{pv.AnnotationReplaces: text}
	for key, value := range object.Annotations {
		if persistentvolume.Reads(key) && key != pv.AnnotationUndelete { // a request about the old PersistentVolume alone
			annotations[key] = value
		}
	}
	spec := object.Spec.DeepCopy()
	spec.PersistentVolumeSource = source
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = claimRef(spec.ClaimRef.Namespace, spec.ClaimRef.Name, object.UID)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: annotations,
			Labels: map[string]string{pv.LabelNode: object.Labels[pv.LabelNode]},
		},
		Spec: *spec,
	}, nil
}

// replacement returns the PersistentVolume that a placeholder describes, with the policy Retain until its claim
// is bound again.
func replacement(placeholder *corev1.PersistentVolume, r record, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	source, err := persistentvolume.SourceFor(placeholder, persistentvolume.DoorOf(placeholder), r.Name)
	if err != nil {
		return nil, err
	}
	spec := placeholder.Spec.DeepCopy()
	spec.PersistentVolumeSource = source
	spec.Capacity = r.Capacity
	// A VolumeAttributesClass that was set during a move to the other door is dropped, but its limits stay: the
	// API server accepts one only on CSI volumes.
	spec.VolumeAttributesClassName = nil
	if source.CSI != nil {
		spec.VolumeAttributesClassName = claim.Status.CurrentVolumeAttributesClassName
	}
	spec.ClaimRef = claimRef(claim.Namespace, claim.Name, claim.UID)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.Name, Labels: r.Labels, Annotations: r.Annotations, Finalizers: []string{pv.Finalizer},
		},
		Spec: *spec,
	}, nil
}

func claimRef(namespace, name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: uid}
}
