package persistentvolume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// IsOurs reports whether our driver serves a PersistentVolume.
func IsOurs(object *corev1.PersistentVolume) bool {
	flex := object.Spec.FlexVolume
	return flex != nil && flex.Driver == pv.Driver
}

// Options returns the driver's options; nil if the PersistentVolume is not ours.
func Options(object *corev1.PersistentVolume) map[string]string {
	if !IsOurs(object) {
		return nil
	}
	return object.Spec.FlexVolume.Options
}

// Source returns the volume source with these options. If it is read-only, kubelet does
// not change the group of the files to each pod's fsGroup.
func Source(options map[string]string, readOnly bool) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{
		FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: pv.Driver, FSType: pv.FSType, ReadOnly: readOnly, Options: options},
	}
}

// New returns the PersistentVolume that d describes, not bound to a claim yet.
func New(d pv.Description, modes []corev1.PersistentVolumeAccessMode, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
	mode := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        d.Name,
			Labels:      d.Labels(),
			Finalizers:  []string{pv.Finalizer},
			Annotations: d.Annotations(),
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   modes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(d.Spec.Size), resource.BinarySI)},
			PersistentVolumeReclaimPolicy: policy,
			VolumeMode:                    &mode,
			NodeAffinity:                  OnlyOn(d.Hostname),
			PersistentVolumeSource:        Source(d.Options(), false),
		},
	}
}

// OnlyOn returns the affinity that ties a volume to its node. It uses the hostname label,
// by which the scheduler and people's own affinity rules know a node.
func OnlyOn(hostname string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key:      corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{hostname},
			}},
		}},
	}}
}

// Hostnames returns the values of the label kubernetes.io/hostname that a
// PersistentVolume is tied to; in those that New makes, its node's.
func Hostnames(object *corev1.PersistentVolume) (out []string) {
	affinity := object.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return nil
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn {
				out = append(out, e.Values...)
			}
		}
	}
	return out
}
