package staticvolume

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// If a node repeats an offer for minutes whose PersistentVolume was already created, an event reports
// it.
func TestUsedOfferWarns(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.c.Now = func() time.Time { return now }
	pass := func(d time.Duration) {
		now = now.Add(d)
		w.report.Status.ObservedTime = metav1.NewTime(now)
	}
	require.Len(t, w.round(), 1)
	require.NoError(t, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), Name("n1", "/mnt/fast/a"), metav1.DeleteOptions{}))
	require.Empty(t, w.round())
	w.said()
	require.Empty(t, w.round())
	pass(2 * time.Minute)
	require.Empty(t, w.round())
	require.Empty(t, w.said(), "the node may look again yet")

	w.found().State = flexlvmv1.DiscoveredRefused
	require.Empty(t, w.round())
	w.found().State = flexlvmv1.DiscoveredReady
	pass(time.Minute)
	require.Empty(t, w.round())
	require.Empty(t, w.said(), "it was not offered all the time")

	pass(2*time.Minute + time.Second)
	require.Empty(t, w.round())
	said := w.said()
	require.Contains(t, said, "OfferTaken /mnt/fast/a of node n1 gets no PersistentVolume")
	require.Contains(t, said, "rollout restart deployment/flexlvm-provisioner")
	require.Empty(t, w.round())
	require.Empty(t, w.said(), "told once")
	w.found().Offer = 2
	require.Len(t, w.round(), 1)
}
