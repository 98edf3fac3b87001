package staticvolume

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgotesting "k8s.io/client-go/testing"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A PersistentVolume that its node has withdrawn is deleted with the UID and resourceVersion that were
// observed, and only while no claim has it.
func TestAWithdrawnPersistentVolumeIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(v *corev1.PersistentVolume)
		uid       string
		withdrawn bool
		left      int
	}{
		"without a claim": {func(*corev1.PersistentVolume) {}, "pv-1", true, 0},
		"another":         {func(*corev1.PersistentVolume) {}, "pv-2", true, 1},
		"refused alone":   {func(*corev1.PersistentVolume) {}, "pv-1", false, 1},
		"of a claim":      {func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = &corev1.ObjectReference{UID: "claim-1"} }, "pv-1", true, 1},
		"bound":           {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }, "pv-1", true, 1},
		"released":        {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }, "pv-1", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.round()[0]
			v.UID, v.ResourceVersion, v.Status.Phase = "pv-1", "7", corev1.VolumeAvailable
			c.change(&v)
			_, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), &v, metav1.UpdateOptions{})
			require.NoError(t, err)
			found := w.found()
			found.State, found.PersistentVolumeUID, found.Withdrawn = flexlvmv1.DiscoveredRefused, c.uid, c.withdrawn
			w.round() // fills the cache
			require.Len(t, w.round(), c.left)
			for _, a := range w.client.Actions() {
				if d, is := a.(clientgotesting.DeleteActionImpl); is {
					require.EqualValues(t, "pv-1", *d.DeleteOptions.Preconditions.UID)
					require.NotEmpty(t, *d.DeleteOptions.Preconditions.ResourceVersion)
				}
			}
		})
	}
}
