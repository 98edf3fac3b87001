package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// persistentVolume returns the PersistentVolume of a claim.
func (r *rig) persistentVolume(claim string) *corev1.PersistentVolume {
	r.Helper()
	volumes := &corev1.PersistentVolumeList{}
	require.NoError(r, r.client.List(r.Context(), volumes))
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil && ref.Name == claim {
			return &volumes.Items[i]
		}
	}
	require.Fail(r, "no PersistentVolume of claim "+claim)
	return nil
}

// daemon sets an annotation of a claim's PersistentVolume, as the node daemon does.
func (r *rig) daemon(claim, annotation string) {
	r.Helper()
	v := r.persistentVolume(claim)
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, annotation, "2026-11-21T16:00:00Z")
	require.NoError(r, r.client.Update(r.Context(), v))
}

// Whatever delays the release of a dataset, an eviction that has begun completes: the node has already promised
// the room to other volumes.
func TestEvictedWhileItIsReleased(t *testing.T) {
	const ended = "kubernetes.io/pvc-protection" // keeps a claim even if all its pods have ended
	for name, keep := range map[string]func(*rig, *flexlvmv1.VolumeManager){
		"pods that have ended": func(*rig, *flexlvmv1.VolumeManager) {},
		"a misspelt option":    func(_ *rig, vm *flexlvmv1.VolumeManager) { vm.Spec.Volumes[0].Options["checksum"] = "always" },
		"a failed upload": func(r *rig, vm *flexlvmv1.VolumeManager) {
			r.failed, vm.Spec.Volumes[0].Options["outputURL"] = "access denied", "s3://out/"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			v := volumeOf(flexlvmv1.SourceS3, 2, s3Options(options{"evictionPolicy": "LRU"}))
			vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
			require.NoError(t, r.client.Create(t.Context(), vm))
			r.runs()
			readers := &corev1.PersistentVolumeClaim{}
			require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a"}, readers))
			readers.Finalizers = []string{ended}
			require.NoError(t, r.client.Update(t.Context(), readers))
			vm = r.get()
			vm.Spec.State = flexlvmv1.StateCompleted
			keep(r, vm)
			require.NoError(t, r.client.Update(t.Context(), vm))
			looks := func() {
				for range 5 {
					require.NoError(t, r.look())
				}
			}
			looks()
			require.NotContains(t, r.deleted(), "v-a-0")

			r.daemon("v-a-0", replica.AnnotationEvict)
			looks()
			require.NotEmpty(t, r.persistentVolume("v-a-0").Annotations[replica.AnnotationUnlabelled])
			require.NotContains(t, r.deleted(), "v-a-0", "the daemon's turn")
			r.daemon("v-a-0", replica.AnnotationEvictable)
			looks()
			require.Contains(t, r.deleted(), "v-a-0")
			require.NotContains(t, r.deleted(), "v-a-1")
			require.Empty(t, r.persistentVolume("v-a-1").Annotations[replica.AnnotationUnlabelled])
		})
	}
}
