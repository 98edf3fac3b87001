package persistentvolume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// NameFor returns the name of the PersistentVolume that is provisioned for a claim.
func NameFor(claim types.UID) string { return "pvc-" + string(claim) }

// New returns the PersistentVolume that d describes. It is not bound to a claim yet.
func New(d pv.Description, modes []corev1.PersistentVolumeAccessMode, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
	mode := corev1.PersistentVolumeMode(d.Spec.FSType.VolumeMode())
	var options []string
	for _, o := range d.MountOptions {
		options = append(options, string(o))
	}
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
			NodeAffinity:                  NodeAffinity(d.Hostname),
			MountOptions:                  options,
			PersistentVolumeSource:        source(d),
		},
	}
}

// FromManifest returns the PersistentVolume and the claim of a manifest for an existing volume, as m.YAML
// prints them except for the access modes, which default to ReadWriteOnce.
func FromManifest(m pv.Manifest, modes []corev1.PersistentVolumeAccessMode) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	object := New(m.Description, modes, corev1.PersistentVolumeReclaimPolicy(m.Policy))
	object.Annotations[pv.AnnotationProvisionedBy] = pv.Provisioner
	object.Spec.StorageClassName = m.Class
	object.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: m.Namespace, Name: m.Claim}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeMode: object.Spec.VolumeMode, VolumeName: m.Name, StorageClassName: &m.Class,
			Resources: corev1.VolumeResourceRequirements{Requests: object.Spec.Capacity.DeepCopy()},
		},
	}
	return object, claim
}

// NodeAffinity returns the node affinity that pins a volume to its node. It uses the hostname label, by which
// the scheduler and users' own affinity rules identify a node.
func NodeAffinity(hostname string) *corev1.VolumeNodeAffinity {
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

// Hostnames returns the values of the label kubernetes.io/hostname that a PersistentVolume's node
// affinity requires. New sets exactly one, the node's.
func Hostnames(object *corev1.PersistentVolume) (out []string) {
	affinity := object.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return nil
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		out = append(out, hostnamesOf(term)...)
	}
	return out
}

func hostnamesOf(term corev1.NodeSelectorTerm) (out []string) {
	for _, e := range term.MatchExpressions {
		if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn {
			out = append(out, e.Values...)
		}
	}
	return out
}
