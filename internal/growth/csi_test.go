package growth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// kube-controller-manager does not handle CSI volumes, so flexlvm removes the annotation of a finished growth.
// Otherwise a claim that is bound to the volume later would get the size from before it.
func TestGrantedThroughCSI(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.door, w.spec.Namespace = pv.CSI, "db"
	w.bind("data", gib)
	for _, size := range []volume.Bytes{10 * gib, 20 * gib} {
		has := w.claim("data").Status.Capacity[storage]
		w.ask("data", size)
		w.settle()
		require.Equal(t, has.String(), w.object("data").Annotations[pv.AnnotationPreResizeCapacity])
		w.settle()
		require.Contains(t, w.object("data").Annotations, pv.AnnotationPreResizeCapacity, "the node has not grown it yet")
		require.True(t, w.kubelet("data"))
		w.settle()
		w.requireSize("data", size)
		require.NotContains(t, w.object("data").Annotations, pv.AnnotationPreResizeCapacity)
	}
	writes := w.writes
	w.settle()
	require.Equal(t, writes, w.writes, "that is all")
}

// The next provisioner finishes what its predecessor did not.
func TestGrownThroughCSIWhileThereWasNobody(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.door, w.spec.Namespace = pv.CSI, "db"
	w.bind("data", gib)
	w.ask("data", 10*gib)
	w.settle()
	require.True(t, w.kubelet("data"))
	w.restart()
	w.settle()
	require.NotContains(t, w.object("data").Annotations, pv.AnnotationPreResizeCapacity)
}

// While kubelet does not reach the driver, or the node cannot grow the volume, the growth is retried, soon at first
// and then with exponential backoff.
func TestGrowthIsTriedAgainSoonAndThenLessOften(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.door, w.spec.Namespace = pv.CSI, "db"
	w.bind("data", gib)
	w.ask("data", 10*gib)
	w.settle()
	// fails makes kubelet fail, and returns after what time the growth is granted again.
	fails := func() time.Duration {
		claim := w.claim("data")
		require.Equal(t, pending, state(claim))
		claim.Status.AllocatedResourceStatuses[storage] = underway
		claim.Status.Conditions = append(claim.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now), Message: "the driver is away",
		})
		w.store(claim)
		w.now = w.now.Add(nodeErrorGrace)
		w.settle()
		require.Equal(t, refused, state(w.claim("data")))
		require.Contains(t, w.words("data"), "the driver is away")
		for took := 15 * time.Second; took <= time.Hour; took += 15 * time.Second {
			w.now = w.now.Add(15 * time.Second)
			w.settle()
			if state(w.claim("data")) == pending {
				return took
			}
		}
		require.Fail(t, "it is not tried again")
		return 0
	}
	waits := []time.Duration{}
	for range 6 {
		waits = append(waits, fails())
	}
	require.Equal(t, []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute}, waits)
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 10*gib)

	w.ask("data", 20*gib)
	w.settle()
	require.Equal(t, 30*time.Second, fails(), "another growth")
}
