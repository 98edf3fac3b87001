package growth

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A growth was granted by a report from before the pool filled up, and failed on the node. When it is retried, a
// newer report decides: the condition says what is missing, and the growth is granted as soon as there is room.
func TestStaleReport(t *testing.T) {
	w := newWorld(t, 40*gib, thin(2000))
	w.bind("data", gib)
	w.settle()
	w.ask("data", 20*gib)
	w.serve()
	require.Equal(t, pending, state(w.claim("data")), "granted")
	w.make("filled", "", 25*gib) // not reported yet
	require.False(t, w.kubelet("data"))
	w.daemon()
	w.now = w.now.Add(nodeErrorGrace)
	w.serve()
	require.True(t, w.kubelet("data"), "the pod starts")
	w.now = w.now.Add(max(regrowFirst, sameWords))
	w.settle()
	require.Contains(t, w.words("data"), "must be free at one moment", "what is missing, and not that it failed")
	delete(w.made, "filled")
	w.settle()
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 20*gib)
}

// A node whose clock was ahead must not keep a pod from starting until that date.
func TestNodeErrorAhead(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 60*gib)
	w.settle()
	w.make("foreign", "", 50*gib)
	now := w.now
	w.now = now.AddDate(73, 0, 0)
	require.False(t, w.kubelet("data"))
	w.now = now
	w.serve()
	require.True(t, w.kubelet("data"), "the pod starts")
}

// A request that is lowered after its growth was granted is too late, because kubelet may already be growing the
// volume. If the node fails, the growth is taken back, and the lower request is served.
func TestLoweredAfterItWasGranted(t *testing.T) {
	for name, tt := range map[string]struct {
		fails bool
		size  int64
	}{
		"the node grows it": {size: int64(60 * gib)},
		"the node cannot":   {fails: true, size: int64(10 * gib)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100*gib)
			w.bind("data", gib)
			w.ask("data", 60*gib)
			w.settle()
			if tt.fails {
				w.make("foreign", "", 50*gib)
				require.False(t, w.kubelet("data"))
			}
			w.ask("data", 10*gib)
			w.settle()
			larger := capacity(w.object("data"))
			require.Equal(t, int64(60*gib), larger.Value())
			require.NotNil(t, condition(w.claim("data"), corev1.PersistentVolumeClaimFileSystemResizePending))
			if tt.fails {
				w.now = w.now.Add(nodeErrorGrace)
				w.settle()
				w.now = w.now.Add(regrowFirst)
				w.settle()
			}
			require.True(t, w.kubelet("data"))
			w.settle()
			size := has(w.claim("data"))
			require.Equal(t, tt.size, size.Value())
		})
	}
}
