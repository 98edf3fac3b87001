package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// wholeClaim returns a claim as the API server returns it.
func wholeClaim(volume string) *corev1.PersistentVolumeClaim {
	room := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: "data", UID: "0d5b7d52-93cb-4a87-a8a6-6d2ffb7f5c0e", ResourceVersion: "7",
			Labels: map[string]string{"app": "db"}, DeletionTimestamp: &metav1.Time{}, Finalizers: []string{"kubernetes.io/pvc-protection"},
			Annotations:   map[string]string{pv.AnnotationStorageProvisioner: pv.Provisioner, "other": "x"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("flexlvm"), VolumeName: volume, Resources: corev1.VolumeResourceRequirements{Requests: room},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: room},
	}
}

// Of a node's orphans, only former replicas are kept, because a new replica would reuse them.
func TestLeanReports(t *testing.T) {
	of := func(names ...string) *flexlvmv1.NodeStorage {
		out := &flexlvmv1.NodeStorage{}
		for _, n := range names {
			out.Status.Orphans = append(out.Status.Orphans, flexlvmv1.Orphan{Pool: "flexlvm", Name: n})
		}
		return out
	}
	got, err := Transform(of("pvc-1", "ds-0123456789abcdef", "ds-else"))
	require.NoError(t, err)
	require.Equal(t, of("ds-0123456789abcdef"), got)
}

// The number of all orphans and the retained volumes are kept, because they keep their node from being removed.
func TestLeanReportsKeepWhatKeepsTheirNode(t *testing.T) {
	report := &flexlvmv1.NodeStorage{Status: flexlvmv1.NodeStorageStatus{
		OrphanCount: 3,
		Released: []flexlvmv1.ReleasedVolume{
			{Pool: "flexlvm", Name: "pvc-1", State: string(volume.Unreferenced), Kept: flexlvmv1.KeptTooYoung},
			{Pool: "late", Name: "pvc-2", Namespace: "team-a", State: string(volume.Retained), Kept: flexlvmv1.KeptRetained},
		},
	}}
	got, err := Transform(report)
	require.NoError(t, err)
	require.Equal(t, flexlvmv1.NodeStorageStatus{
		OrphanCount: 3, Released: []flexlvmv1.ReleasedVolume{{Pool: "late", Name: "pvc-2", Kept: flexlvmv1.KeptRetained}},
	}, got.(*flexlvmv1.NodeStorage).Status)
}

func TestLeanClaims(t *testing.T) {
	want := wholeClaim("")
	want.ManagedFields = nil
	got, err := Transform(wholeClaim(""))
	require.NoError(t, err)
	require.Equal(t, want, got, "the library writes a claim that waits back as a whole")

	of := func(provisioner string) *corev1.PersistentVolumeClaim {
		out := wholeClaim("")
		out.Annotations = map[string]string{pv.AnnotationStorageProvisionerBeta: provisioner, pv.AnnotationSelectedNode: "node-1", "other": "x"}
		out.Labels[replica.LabelDataset] = "0123456789abcdef"
		out.OwnerReferences = []metav1.OwnerReference{{Name: "a"}, {Name: "b", Controller: new(true)}}
		out.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		return out
	}
	got, err = Transform(of("nfs." + pv.Provisioner))
	require.NoError(t, err)
	require.Contains(t, got.(*corev1.PersistentVolumeClaim).Annotations, "other")
	for _, provisioner := range []string{"", "ebs.csi.example.org", "not" + pv.Provisioner} {
		got, err = Transform(of(provisioner))
		require.NoError(t, err)
		whole, pending := of(provisioner), got.(*corev1.PersistentVolumeClaim)
		require.Equal(t, map[string]string{pv.AnnotationSelectedNode: "node-1"}, pending.Annotations)
		require.Equal(t, map[string]string{replica.LabelDataset: "0123456789abcdef"}, pending.Labels)
		require.Equal(t, whole.OwnerReferences[1:], pending.OwnerReferences)
		require.Equal(t, &metav1.LabelSelector{}, pending.Spec.Selector)
		require.Equal(t, whole.Spec.Resources, pending.Spec.Resources)
		require.Equal(t, whole.UID, pending.UID)
	}

	got, err = Transform(wholeClaim("pvc-1"))
	require.NoError(t, err)
	bound := got.(*corev1.PersistentVolumeClaim)
	require.Equal(t, "7", bound.ResourceVersion, "a claim is deleted only as it was judged")
	require.NotNil(t, bound.DeletionTimestamp)
	require.Equal(t, []string{"team-a", "data"}, []string{bound.Namespace, bound.Name})
	require.Empty(t, bound.Spec.Resources)
	require.NotContains(t, bound.Annotations, "other")

	grows := wholeClaim("pvc-1")
	grows.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	got, err = Transform(grows.DeepCopy())
	require.NoError(t, err)
	require.Equal(t, grows.Status, got.(*corev1.PersistentVolumeClaim).Status)
	require.Equal(t, grows.Spec.Resources, got.(*corev1.PersistentVolumeClaim).Spec.Resources)
}

// wholeVolume returns a flexlvm PersistentVolume as the API server returns it.
func wholeVolume(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	out := persistentvolume.New(pv.Description{
		Name: "pvc-1", Node: "n1", Hostname: "h1", Charged: volume.GiB,
		Spec:     volume.Spec{Group: "data", Name: "pvc-1", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"},
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeZero}, OnNodeLoss: volume.OnNodeLossRelease,
	}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	out.UID, out.ResourceVersion = "b7c1", "8"
	out.Annotations[pv.AnnotationProvisionedBy] = pv.Provisioner
	out.Finalizers = append(out.Finalizers, "kubernetes.io/pv-protection")
	out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "0d5b", ResourceVersion: "6"}
	out.Status.Phase = corev1.VolumeReleased
	out.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "flexlvm"}}
	return out
}

// TestLeanVolumes checks that a transformed PersistentVolume is parsed like the original.
func TestLeanVolumes(t *testing.T) {
	whole := wholeVolume(t)
	want, err := persistentvolume.Parse(whole)
	require.NoError(t, err)

	object, err := Transform(wholeVolume(t))
	require.NoError(t, err)
	left := object.(*corev1.PersistentVolume)
	got, err := persistentvolume.Parse(left)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []string{"h1"}, persistentvolume.Hostnames(left))
	require.Equal(t, []string{"b7c1", "8"}, []string{string(left.UID), left.ResourceVersion})
	require.Equal(t, whole.Finalizers, left.Finalizers)
	require.Nil(t, left.ManagedFields)

	// The label with the group of a snapshot is kept.
	grouped := wholeVolume(t)
	grouped.Labels[pv.LabelSnapshotGroup] = "groupsnapshot-1"
	object, err = Transform(grouped.DeepCopy())
	require.NoError(t, err)
	require.Equal(t, "groupsnapshot-1", object.(*corev1.PersistentVolume).Labels[pv.LabelSnapshotGroup])
	stored, err := Pack(grouped)
	require.NoError(t, err)
	require.Equal(t, "groupsnapshot-1", unpack(stored).(*corev1.PersistentVolume).Labels[pv.LabelSnapshotGroup])

	broken := wholeVolume(t)
	broken.Spec.FlexVolume.Options["unknown"] = "x"
	object, err = Transform(broken)
	require.NoError(t, err)
	_, err = persistentvolume.Parse(object.(*corev1.PersistentVolume))
	require.Error(t, err, "what cannot be read stays so")
}

func TestLeanVolumesOfOthers(t *testing.T) {
	object, err := Transform(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "nfs", UID: "1", Labels: map[string]string{pv.LabelNode: "n1"},
			Annotations: map[string]string{pv.AnnotationProvisionedBy: "nfs.example.org", "other": "x"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "nfs.example.org", VolumeAttributes: map[string]string{"share": "x"}},
			},
		},
	})
	require.NoError(t, err)
	require.Equal(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "nfs", UID: "1", Annotations: map[string]string{pv.AnnotationProvisionedBy: "nfs.example.org"}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "nfs.example.org"}},
		},
	}, object)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}}
	object, err = Transform(class)
	require.NoError(t, err)
	require.Same(t, class, object)
}

func TestLeanNodes(t *testing.T) {
	named := func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}} }
	node := named()
	node.Annotations = map[string]string{"much": "text"}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := Transform(node)
	require.NoError(t, err)
	require.Equal(t, named(), got)
	last := cache.DeletedFinalStateUnknown{Key: "node-1"}
	got, err = Transform(last)
	require.NoError(t, err)
	require.Equal(t, last, got)
}
