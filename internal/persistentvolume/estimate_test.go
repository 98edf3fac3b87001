package persistentvolume_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// Whether a PersistentVolume is being removed can be read although a later release has written it.
func TestEstimateKnowsWhatIsBeingRemoved(t *testing.T) {
	for name, tt := range map[string]struct {
		phase    corev1.PersistentVolumePhase
		policy   corev1.PersistentVolumeReclaimPolicy
		deleting bool
		removed  bool
	}{
		"bound":                     {phase: corev1.VolumeBound, policy: corev1.PersistentVolumeReclaimDelete},
		"bound and deleted":         {phase: corev1.VolumeBound, policy: corev1.PersistentVolumeReclaimDelete, deleting: true},
		"released":                  {phase: corev1.VolumeReleased, policy: corev1.PersistentVolumeReclaimDelete, removed: true},
		"released and retained":     {phase: corev1.VolumeReleased, policy: corev1.PersistentVolumeReclaimRetain},
		"released, unknown policy":  {phase: corev1.VolumeReleased, policy: "Hide"},
		"retained and deleted":      {phase: corev1.VolumeReleased, policy: corev1.PersistentVolumeReclaimRetain, deleting: true, removed: true},
		"deleted, in unknown phase": {phase: "Hidden", policy: corev1.PersistentVolumeReclaimDelete, deleting: true},
	} {
		t.Run(name, func(t *testing.T) {
			object := persistentVolume()
			object.Spec.FlexVolume.Options["colour"] = "blue"
			object.Status.Phase, object.Spec.PersistentVolumeReclaimPolicy = tt.phase, tt.policy
			if tt.deleting {
				object.DeletionTimestamp = &metav1.Time{}
			}
			_, err := persistentvolume.Parse(object)
			require.Error(t, err)
			v, known := persistentvolume.Estimate(object)
			require.True(t, known)
			require.Equal(t, tt.removed, v.BeingRemoved())
		})
	}
}
