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
)

// A PersistentVolume that was deleted by hand while its claim was there, as Kubernetes shows it once
// the claim is gone: its directory is disposed of nevertheless.
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
		ended <- Work(ctx, Config{Client: client, Exports: exports, Patience: time.Minute, Workers: 1, Metrics: NewMetrics()})
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

// A PersistentVolume from before there was a finalizer gets it while its claim is there.
func TestFinalizerOfEarlierVolumes(t *testing.T) {
	ctx := t.Context()
	v := volumeAt("a", "/srv/team-data-"+pvName)
	v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": Name, AnnotationOnDelete: string(Archive)}
	v.Spec.PersistentVolumeReclaimPolicy, v.Status.Phase = corev1.PersistentVolumeReclaimDelete, corev1.VolumeBound
	client := fake.NewClientset(v)
	ended := make(chan error)
	go func() {
		ended <- Work(ctx, Config{Client: client, Exports: exportsOf(t, "a:/srv="+t.TempDir()), Patience: time.Minute, Workers: 1, Metrics: NewMetrics()})
	}()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	require.Eventually(t, func() bool {
		now, err := client.CoreV1().PersistentVolumes().Get(ctx, pvName, metav1.GetOptions{})
		return err == nil && len(now.Finalizers) == 1 && now.Finalizers[0] == finalizer
	}, time.Minute, 10*time.Millisecond)
}
