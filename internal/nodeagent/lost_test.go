package nodeagent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A lost volume, for example on a disk that was given up, is never created again, so no released volume is evicted to
// make room for it. An event tells its owner.
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

	// Room is made for another claim of the same size.
	r.api.put(object("new", 40))
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "given-up unreferenced") }, "the interval is an hour; left: %v", r.engine.names())
}

// A last use in the future comes from a clock that was ahead, and proves that the volume was there.
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

// A replica that its PersistentVolume calls complete was there, even if the node has no record of it: the API server
// was restored from a backup that is older than the replica's eviction.
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

	// A replica that was not loaded yet is promised its room.
	r.api.put(replicaObject(40, func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationComplete) }))
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "given-up unreferenced") }, "left: %v", r.engine.names())
}

// A snapshot that was taken and is gone, for example with its disk, is never taken again. So no released volume is
// evicted to make room for a copy of it. An event reports it.
func TestNoRoomIsMadeForACopyOfASnapshotThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 50)
	r.volume("given-up", volume.Unreferenced, 30)
	r.api.put(storeObject(t, "snap", 0))
	r.api.put(object("copy", 40, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionCloneOf] = "snap" }))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "told: %v", r.api.told("VolumeNeedsAttention"))
	require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "its volume flexlvm/snap, which was taken according to the PersistentVolume, is gone, so the snapshot cannot be restored; delete its VolumeSnapshot")
	r.rounds(3)
	r.untouched("big ready", "given-up unreferenced", "settled ready")
	require.Equal(t, "0", r.status().Pools[0].Promised.String())
	require.Equal(t, metav1.ConditionFalse, r.condition("Shortfall").Status)
	require.NotContains(t, r.api.volume("snap").Annotations, pv.AnnotationSnapshotProblem)
}

// The user has deleted the VolumeSnapshot or the claim whose volume is gone. A copy of it can still not be created, so
// nothing is evicted for it. But room is made for a copy whose source only is not created yet.
func TestNoRoomIsMadeForACopyWhoseSourceIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source *corev1.PersistentVolume
		room   bool
	}{
		"source PV gone":     {nil, false},
		"source PV Released": {object("source", 1, pvReleased), false},
		"source PV Bound":    {object("source", 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("big", 50)
			r.volume("given-up", volume.Unreferenced, 30)
			if tt.source != nil {
				r.api.put(tt.source)
			}
			r.api.put(object("copy", 40, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionCloneOf] = "source" }))
			r.start()
			if tt.room {
				r.eventually(func() bool { return !slices.Contains(r.engine.names(), "given-up unreferenced") }, "left: %v", r.engine.names())
				return
			}
			r.eventually(r.readyIs("Ready"), "not ready")
			r.rounds(3)
			require.Contains(t, r.engine.names(), "given-up unreferenced")
			require.Equal(t, "0", r.status().Pools[0].Promised.String())
			require.Equal(t, metav1.ConditionFalse, r.condition("Shortfall").Status)
		})
	}
}

// A snapshot that may have been taken after the inventory is not lost, and neither is one that is not taken yet.
func TestSnapshotThatIsTakenMeanwhileIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	taken, open := storeObject(t, "snap", 0), storeObject(t, "open", 0)
	taken.Annotations[pv.AnnotationSnapshotTaken] = r.clock.now().UTC().Format(time.RFC3339)
	delete(open.Annotations, pv.AnnotationSnapshotTaken)
	r.api.put(taken)
	r.api.put(open)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(2)
	require.Empty(t, r.api.told("VolumeNeedsAttention"))

	r.clock.pass(time.Hour)
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "told: %v", r.api.told("VolumeNeedsAttention"))
	require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "flexlvm/snap")
}

// A complete replica that was created after the inventory is not lost.
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
