package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The cache leaves nothing that matters out of a PersistentVolume.
func TestStrippedVolumeIsTheSameClaim(t *testing.T) {
	object := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-1", UID: "uid", Finalizers: []string{pv.Finalizer}, Labels: map[string]string{pv.LabelNode: "node-1"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}},
			Annotations: map[string]string{
				pv.AnnotationCharged: "629145600", pv.AnnotationRatio: "2", pv.AnnotationReclaim: "immediate", pv.AnnotationWipe: "discard",
				pv.AnnotationIOLimits: "readBps=1048576", pv.AnnotationTrim: "daily", pv.AnnotationOnNodeLoss: "release", "kubectl.kubernetes.io/last-applied": "much",
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "db", Name: "data", UID: "its-uid"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, Options: map[string]string{
					volume.OptionGroup: "flexlvm", volume.OptionSize: "1073741824", volume.OptionLayout: "thin", volume.OptionThinPool: "thinpool",
					volume.OptionCluster: "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01", volume.OptionCloneOf: "pvc-0",
				},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	want, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.NotEqual(t, volume.Ratio(0), want.Shape.Ratio)
	stripped, err := stripVolume(object.DeepCopy())
	require.NoError(t, err)
	got, err := persistentvolume.Parse(stripped.(*corev1.PersistentVolume))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NotContains(t, stripped.(*corev1.PersistentVolume).Annotations, "kubectl.kubernetes.io/last-applied")
	for name := range object.Annotations {
		bare := object.DeepCopy()
		delete(bare.Annotations, name)
		without, err := persistentvolume.Parse(bare)
		require.Equal(t, persistentvolume.Reads(name), err != nil || without != want, "%s: what is read is kept, and nothing else", name)
	}
}

// A PersistentVolume from the initial list of the watch has not appeared.
func TestVolumesThatWereThereHaveNotAppeared(t *testing.T) {
	kicks, appeared := 0, []string{}
	h := volumeHandler(func() { kicks++ }, func(o *corev1.PersistentVolume) { appeared = append(appeared, o.Name) })
	h.OnAdd(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, true)
	h.OnAdd(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, false)
	require.Equal(t, []string{"new"}, appeared)
	require.Equal(t, 2, kicks)
}

// A report that is older than the one before was restored from a backup, and is written again.
func TestRestoredReportIsNews(t *testing.T) {
	kicks := 0
	h := storageHandler(func() { kicks++ })
	at := func(minute int) *flexlvmv1.NodeStorage {
		return &flexlvmv1.NodeStorage{Status: flexlvmv1.NodeStorageStatus{ObservedTime: metav1.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)}}
	}
	h.OnUpdate(at(1), at(2))
	require.Zero(t, kicks, "the daemon's own")
	h.OnUpdate(at(2), at(1))
	require.Equal(t, 1, kicks)
	asked := at(2)
	asked.Spec.Requests = []flexlvmv1.VolumeRequest{{ID: "1"}}
	h.OnUpdate(at(1), asked)
	require.Equal(t, 2, kicks)
}
