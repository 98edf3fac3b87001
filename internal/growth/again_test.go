package growth

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A growth that was granted by a report from before the pool filled up, and that the node could
// not do, goes by a newer report when it is tried again: it says what is missing, and is granted
// as soon as that is there.
func TestStaleReport(t *testing.T) {
	w := newWorld(t, 40*gib, thin(2000))
	w.bind("data", gib)
	w.settle()
	w.ask("data", 20*gib)
	w.serve()
	require.Equal(t, pending, state(w.claim("data")), "granted")
	w.make("filled", "", 25*gib) // and nobody has reported it
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

// A node whose clock is ahead must not keep a pod from starting until that day.
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
