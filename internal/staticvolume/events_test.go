package staticvolume

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node whose clock is ahead reports another time every five minutes, but its event is sent once an hour.
func TestSilentNodeWarnsOnceAnHour(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	w.c.Now = func() time.Time { return now }
	said := 0
	for range 30 {
		w.report.Status.ObservedTime = metav1.NewTime(now.Add(time.Hour))
		w.round()
		if w.said() != "" {
			said++
		}
		require.Len(t, w.c.warned, 1)
		now = now.Add(5 * time.Minute)
	}
	require.Equal(t, 3, said)

	other := w.report.DeepCopy()
	other.Name = "n2"
	require.NoError(t, w.c.NodeStorages.GetStore().Add(other))
	w.report.Status.ObservedTime = metav1.NewTime(now)
	other.Status.ObservedTime = metav1.NewTime(now.Add(time.Hour))
	w.round()
	require.Contains(t, w.said(), "NodeSilent node n2", "each node by itself")

	// Warnings whose cause is gone are forgotten.
	require.NoError(t, w.c.NodeStorages.GetStore().Delete(other))
	now = now.Add(warnEvery)
	w.report.Status.ObservedTime = metav1.NewTime(now)
	w.round()
	require.Empty(t, w.c.warned)
}
