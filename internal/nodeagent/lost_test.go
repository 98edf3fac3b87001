package nodeagent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
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

// A last use that is yet to come is of a clock that was ahead: the volume was there all the same.
func TestNoRoomIsMadeForWhatAClockAheadHasUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 50)
	r.volume("given-up", volume.Unreferenced, 30)
	r.engine.served, r.engine.servedAt = []string{"flexlvm/lost"}, r.clock.now().AddDate(1, 0, 0)
	r.api.put(object("lost", 40))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "told: %v", r.api.told("VolumeNeedsAttention"))
	r.rounds(3)
	r.untouched("big ready", "given-up unreferenced", "settled ready")
}

// A replica that says that it is complete was there, also where the node knows nothing of it any more: the
// API server was restored from a backup that is older than its eviction.
func TestNoRoomIsMadeForACompleteReplicaThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 50)
	r.volume("given-up", volume.Unreferenced, 30)
	r.api.put(replicaObject(40))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "told: %v", r.api.told("VolumeNeedsAttention"))
	told := r.api.told("VolumeNeedsAttention")[0]
	require.Contains(t, told, "its volume flexlvm/"+replicaName+", which is complete according to the PersistentVolume, is gone")
	require.Contains(t, told, "delete claim db/data-"+replicaPV+", and the replica is loaded again")
	r.rounds(3)
	r.untouched("big ready", "given-up unreferenced", "settled ready")
	require.Equal(t, "0", r.status().Pools[0].Promised.String())
	require.Equal(t, metav1.ConditionFalse, r.condition("Shortfall").Status)

	// One that was not loaded yet is promised its room.
	r.api.put(replicaObject(40, func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationComplete) }))
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "given-up unreferenced") }, "left: %v", r.engine.names())
}

// A complete replica that was made after the node was looked at is not lost.
func TestReplicaThatIsMadeMeanwhileIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.served, r.engine.servedAt = []string{"flexlvm/" + replicaName}, r.clock.now()
	r.api.put(replicaObject(40))
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(2)
	require.Empty(t, r.api.told("VolumeNeedsAttention"))
}
