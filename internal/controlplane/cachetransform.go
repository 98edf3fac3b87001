package controlplane

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// Transform drops unused fields from cached objects, which in a large cluster are most of this
// process's memory.
func Transform(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Node:
		o.Annotations = only(o.Annotations, pv.AnnotationScaleDown, pv.AnnotationScaleDownOurs)
		o.Status = corev1.NodeStatus{Conditions: o.Status.Conditions}
	case *flexlvmv1.NodeStorage:
		o.Spec = flexlvmv1.NodeStorageSpec{}
		o.Status.Evictions, o.Status.EvictionPolicy, o.Status.Answers, o.Status.Checks = nil, nil, nil, nil
		o.Status.Released = stripRetained(o.Status.Released)
		for i := range o.Status.Pools {
			o.Status.Pools[i].RecentVolumes = nil
		}
		o.Status.Orphans = slices.DeleteFunc(o.Status.Orphans, func(orphan flexlvmv1.Orphan) bool { return !replica.IsVolumeName(orphan.Name) })
	case *corev1.PersistentVolumeClaim:
		return stripClaim(o), nil
	case *corev1.PersistentVolume:
		return stripVolume(o), nil
	}
	return obj, nil
}

// stripRetained returns the retained volumes among a node's released ones, without the fields that identify
// their data. A retained volume keeps its node from being removed, and is listed even while the node does not
// see its volume group.
func stripRetained(released []flexlvmv1.ReleasedVolume) (out []flexlvmv1.ReleasedVolume) {
	for i := range released {
		if r := &released[i]; r.Kept == flexlvmv1.KeptRetained {
			out = append(out, flexlvmv1.ReleasedVolume{Pool: r.Pool, Name: r.Name, Kept: r.Kept})
		}
	}
	return out
}

// stripClaim returns a claim that asks one of flexlvm's provisioners for its volume unchanged, because
// the library writes it back as a whole. Of other claims without a volume it keeps the fields by which
// a request to flexlvm would be checked, and of claims with a volume the identity and the volume's
// name.
func stripClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if claim.Spec.VolumeName == "" {
		if asksFlexlvm(claim) {
			return claim
		}
		return stripPending(claim)
	}
	out := &corev1.PersistentVolumeClaim{
		ObjectMeta: stripMeta(claim, only(claim.Annotations, pv.AnnotationStorageProvisioner, pv.AnnotationStorageProvisionerBeta)),
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: claim.Spec.VolumeName},
	}
	if grows(claim) {
		out.Spec.Resources, out.Status = claim.Spec.Resources, claim.Status
	}
	return out
}

// asksFlexlvm reports whether kube-controller-manager has assigned a claim to one of flexlvm's
// provisioners.
func asksFlexlvm(claim *corev1.PersistentVolumeClaim) bool {
	for _, key := range []string{pv.AnnotationStorageProvisioner, pv.AnnotationStorageProvisionerBeta} {
		if name := claim.Annotations[key]; name == pv.Provisioner || strings.HasSuffix(name, "."+pv.Provisioner) {
			return true
		}
	}
	return false
}

// stripPending keeps the fields of a claim that are checked before it has a node: its class may be one
// of flexlvm's. The cache holds the claims of all tenants and classes, with up to 256 KiB of
// annotations each.
func stripPending(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{
		ObjectMeta: stripMeta(claim, only(claim.Annotations, pv.AnnotationSelectedNode, replica.AnnotationVolumeID, replica.AnnotationEviction)),
		Spec:       claim.Spec,
	}
	out.Labels = only(claim.Labels, replica.LabelDataset)
	if owner := metav1.GetControllerOf(claim); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if out.Spec.Selector != nil {
		out.Spec.Selector = &metav1.LabelSelector{} // its presence is enough to refuse the claim
	}
	return out
}

// grows reports whether a claim requests more than it has, or did so recently: package growth then
// needs its size and its status.
func grows(claim *corev1.PersistentVolumeClaim) bool {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	return asked.Cmp(has) > 0 || len(claim.Status.AllocatedResourceStatuses) > 0
}

// stripVolume keeps the fields of a PersistentVolume that persistentvolume.Parse and nodeloss read, and
// those by which the library decides about deletions and counts them. The library writes only
// finalizers.
func stripVolume(volume *corev1.PersistentVolume) *corev1.PersistentVolume {
	spec := volume.Spec
	out := &corev1.PersistentVolume{
		ObjectMeta: stripMeta(volume, only(volume.Annotations, pv.AnnotationProvisionedBy, annotationMigratedTo)),
		Spec:       corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: spec.PersistentVolumeReclaimPolicy, StorageClassName: spec.StorageClassName},
		Status:     corev1.PersistentVolumeStatus{Phase: volume.Status.Phase},
	}
	out.Finalizers = volume.Finalizers
	out.Spec.PersistentVolumeSource = persistentvolume.StripSource(volume)
	if !persistentvolume.IsOurs(volume) {
		out.Labels = only(volume.Labels, flexlvmv1.LabelDiscoveredOn)
		return out
	}
	out.Labels = only(volume.Labels, pv.LabelNode, pv.LabelSnapshotGroup, replica.LabelDataset, replica.LabelShared)
	out.Annotations = volume.Annotations
	out.Spec.Capacity, out.Spec.NodeAffinity = spec.Capacity, spec.NodeAffinity
	if ref := spec.ClaimRef; ref != nil {
		out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	}
	return out
}

// annotationMigratedTo is Kubernetes' own: it names the provisioner that a PersistentVolume has
// migrated to.
const annotationMigratedTo = "pv.kubernetes.io/migrated-to"

// stripMeta keeps the fields that identify an object, and its deletion timestamp.
func stripMeta(object metav1.Object, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		ResourceVersion: object.GetResourceVersion(), DeletionTimestamp: object.GetDeletionTimestamp(),
		Annotations: annotations,
	}
}

// only returns the entries with these keys; nil if there are none.
func only(entries map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		value, has := entries[key]
		if !has {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out
}
