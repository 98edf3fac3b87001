package growth

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// kube-controller-manager leaves CSI volumes alone, so nobody else ends what is noted of a
// growth: a claim that is bound to the volume anew would be told the size before it.
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

// A successor ends what its predecessor did not.
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
