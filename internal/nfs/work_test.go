package nfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// A PersistentVolume was deleted by hand while its claim existed, and is released once the claim is gone. Its
// directory is disposed of nevertheless.
func TestDeletedByHand(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	exports := exportsOf(t, "a:/srv="+dir)
	class := classOf(exports[0], "onDelete", "delete")
	class.Provisioner = Name
	claim := claimOf(corev1.ReadWriteMany)
	claim.Spec.StorageClassName = &class.Name
	claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": Name}
	client := fake.NewClientset(class, claim)
	ended := make(chan error)
	go func() {
		ended <- Work(ctx, Config{Client: client, Exports: exports, IOTimeout: time.Minute, Workers: 1, Metrics: NewMetrics()})
	}()
	t.Cleanup(func() { require.NoError(t, <-ended) })

	volumes := client.CoreV1().PersistentVolumes()
	var v *corev1.PersistentVolume
	require.Eventually(t, func() (found bool) {
		var err error
		v, err = volumes.Get(ctx, pvName, metav1.GetOptions{})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, []string{finalizer}, v.Finalizers)
	directory := filepath.Join(dir, filepath.Base(v.Spec.NFS.Path))
	require.DirExists(t, directory)

	v.UID, v.Status.Phase, v.DeletionTimestamp = "u1", corev1.VolumeReleased, &metav1.Time{Time: time.Now()}
	_, err := volumes.Update(ctx, v, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Lstat(directory); return os.IsNotExist(err) }, time.Minute, 10*time.Millisecond)
}

// A PersistentVolume from before the finalizer existed gets the finalizer while its claim exists.
func TestFinalizerOfEarlierVolumes(t *testing.T) {
	ctx := t.Context()
	v := volumeAt("a", "/srv/team-data-"+pvName)
	v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": Name, AnnotationOnDelete: string(Archive)}
	v.Spec.PersistentVolumeReclaimPolicy, v.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeBound
	client := fake.NewClientset(v)
	ended := make(chan error)
	go func() {
		ended <- Work(ctx, Config{Client: client, Exports: exportsOf(t, "a:/srv="+t.TempDir()), IOTimeout: time.Minute, Workers: 1, Metrics: NewMetrics()})
	}()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		now, err := client.CoreV1().PersistentVolumes().Get(ctx, pvName, metav1.GetOptions{})
		return err == nil && len(now.Finalizers) == 1 && now.Finalizers[0] == finalizer
	}, time.Minute, 10*time.Millisecond)
}

// Of other drivers' volumes and of their claims, the caches keep only what the library needs; of this provisioner's
// volumes also the class, by which deletions are counted.
func TestCachesKeepNothingOfOthers(t *testing.T) {
	ctx := t.Context()
	own, other := volumeAt("a", "/srv/team-data-"+pvName), volumeAt("b", "/precious")
	own.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": Name, AnnotationOnDelete: string(Archive)}
	own.Spec.StorageClassName, own.Finalizers = "shared", []string{finalizer}
	own.Spec.PersistentVolumeReclaimPolicy, own.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased
	other.Name, other.Annotations, other.Labels = "precious", map[string]string{"other": "precious"}, map[string]string{"other": "precious"}
	claim, waits := claimOf(corev1.ReadWriteMany), claimOf(corev1.ReadWriteMany)
	claim.Name, claim.UID, claim.Spec.VolumeName, claim.Labels = "bound", "u1", "precious", map[string]string{"other": "precious"}
	claim.Status.Capacity = claim.Spec.Resources.Requests
	seen := newCaches(fake.NewClientset(own, other, claim, waits))
	seen.factory.Start(ctx.Done())
	seen.factory.WaitForCacheSync(ctx.Done())

	get := func(of controlplane.Packed, key string) any {
		obj, there, err := of.GetStore().GetByKey(key)
		require.True(t, err == nil && there, "%s: %v", key, err)
		return obj
	}
	require.Equal(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pvName, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": Name}, Finalizers: []string{finalizer}},
		Spec:       corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: "shared"},
		Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}, get(seen.volumes, pvName))
	require.Equal(t, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "precious"}}, get(seen.volumes, "precious"))
	require.Equal(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "bound", UID: "u1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "precious"},
	}, get(seen.claims, "team/bound"))
	require.Equal(t, waits, get(seen.claims, "team/data"), "the library writes to what waits")
	for _, stored := range append(seen.volumes.SharedIndexInformer.GetStore().List(), seen.claims.SharedIndexInformer.GetStore().List()...) {
		_, whole := stored.(*corev1.PersistentVolume)
		require.False(t, whole, "it is packed")
	}
}
