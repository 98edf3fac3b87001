package nodeagent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What was lost, with a disk that was given up for one, is never made anew: no volume that its
// owner may still bring back is evicted for it. Its owner is told.
func TestNoRoomIsMadeForWhatIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Interval = time.Hour
	r.claimed("big", 50)
	r.claimed("given-up", 15)
	r.engine.served = []string{"flexlvm/lost"}
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.api.put(object("given-up", 15, pvReleased))
	r.eventually(func() bool { return slices.Contains(r.engine.names(), "given-up unreferenced") }, "not released")

	r.clock.pass(time.Hour)
	r.api.put(object("lost", 40))
	r.untilQuiet()
	require.Contains(t, r.engine.names(), "given-up unreferenced")
	require.Equal(t, metav1.ConditionFalse, r.condition("Shortfall").Status)
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "told: %v", r.api.told("VolumeNeedsAttention"))
	require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "its volume flexlvm/lost, which was here as far as this node's records show, is gone")
	r.metricIs("flexlvm_attention_persistentvolumes", 1)

	// Another claim of that size is served.
	r.api.put(object("new", 40))
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "given-up unreferenced") }, "the interval is an hour; left: %v", r.engine.names())
}
