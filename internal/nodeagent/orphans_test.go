package nodeagent_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestOrphans(t *testing.T) {
	for name, evict := range map[string]bool{"reported": false, "evicted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("big", 65)
			// An existing copy no longer needs its source.
			r.claimed("copy", 5, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionCloneOf] = "orphan" })
			r.volume("orphan", volume.Ready, 20, evictiontest.LastUsed(100))
			r.config.Policy.EvictOrphans = evict
			r.start()
			r.eventually(func() bool { return len(r.api.told("OrphansFound")) == 1 }, "no event")
			require.Contains(t, r.api.told("OrphansFound")[0], "1 volume on this node without a PersistentVolume (the oldest: flexlvm/orphan)")
			if !evict {
				r.rounds(2)
				r.untouched("big ready", "copy ready", "settled ready", "orphan ready")
				status := r.status()
				require.EqualValues(t, 1, status.OrphanCount)
				require.Equal(t, "orphan", status.Orphans[0].Name)
				r.metricIs("flexlvm_orphans", 1)
				return
			}
			r.eventually(func() bool {
				return slices.Equal(r.engine.names(), []string{"big ready", "copy ready", "settled ready"})
			}, "left: %v", r.engine.names())
			r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
			require.Equal(t, "Orphan", r.status().Evictions[0].Reason)
		})
	}
}

// A PersistentVolume without this node's label is not in the daemon's lists, but keeps its volume.
func TestOrphanThatIsNone(t *testing.T) {
	for name, wants := range map[string]*corev1.PersistentVolume{
		"of another node": object("wanted", 20, func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }),
		"of no node":      object("wanted", 20, unlabelled),
		"of no node, by another name": object("pvc-1", 20, unlabelled, func(o *corev1.PersistentVolume) {
			o.Spec.FlexVolume.Options[volume.OptionVolume] = "wanted"
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("big", 70)
			r.volume("wanted", volume.Ready, 20, evictiontest.LastUsed(100))
			r.api.readers = wants
			r.config.Policy.EvictOrphans = true
			r.start()
			r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) > 0 }, "no event")
			require.Contains(t, r.api.told("VolumeNotEvicted")[0], "PersistentVolume "+wants.Name+" names volume wanted, and its label flexlvm.io/node is ")
			r.rounds(2)
			r.untouched("big ready", "settled ready", "wanted ready")
			r.api.fail(http.StatusServiceUnavailable, "get persistentvolumes", "list unlabelled persistentvolumes")
			r.clock.pass(time.Hour) // the failed check is retried
			r.rounds(3)
			r.untouched("big ready", "settled ready", "wanted ready")
		})
	}
}

// A PersistentVolume that is labelled for another node keeps its replica, as after a machine was reinstalled under
// another name. Its name is not that of the volume. Another node's replica of the dataset has the same volume name.
func TestReplicaThatIsNoOrphan(t *testing.T) {
	elsewhere := func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }
	inGroup := func(uuid string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionGroupUUID] = uuid }
	}
	const another = "AbCdEf-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	for name, tt := range map[string]struct {
		volume string
		change func(*corev1.PersistentVolume)
		stays  string // part of the event; empty if the volume is evicted
	}{
		"in its group":        {replicaName, inGroup(evictiontest.GroupUUID), "PersistentVolume pvc-replica names volume " + replicaName + ", and its label flexlvm.io/node is \"node-2\""},
		"in any group":        {replicaName, func(*corev1.PersistentVolume) {}, "PersistentVolume pvc-replica names volume " + replicaName},
		"that cannot be read": {replicaName, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options["colour"] = "red" }, "PersistentVolume pvc-replica names volume " + replicaName},
		"in another group":    {replicaName, inGroup(another), ""},
		"of another dataset":  {"ds-fedcba9876543210", func(*corev1.PersistentVolume) {}, ""},
		"by no dataset's name": {"ds-mine", func(*corev1.PersistentVolume) {},
			"volume ds-mine is a replica, but its name is not that of a dataset"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("big", 70)
			r.volume(tt.volume, volume.Ready, 20, evictiontest.LastUsed(100), func(v *inventory.Volume) { v.Kind = volume.Dataset })
			r.api.put(replicaObject(20, elsewhere, tt.change))
			r.config.Policy.EvictOrphans = true
			r.start()
			if tt.stays == "" {
				r.eventually(func() bool { return !slices.Contains(r.engine.names(), tt.volume+" ready") }, "not evicted")
				return
			}
			r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) > 0 }, "no event")
			require.Contains(t, r.api.told("VolumeNotEvicted")[0], tt.stays)
			r.rounds(2)
			require.Contains(t, r.engine.names(), tt.volume+" ready")
		})
	}
}

// A released volume stays while a PersistentVolume of another node is Retain or bound. A machine that was reinstalled
// under another name has the disks of the old node.
func TestVolumeOfAnotherNodesPersistentVolumeStays(t *testing.T) {
	elsewhere := func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }
	for name, tt := range map[string]struct {
		object *corev1.PersistentVolume
		listed int // Config.ListUpTo
		stays  bool
	}{
		"Retain":                     {object("old", 15, elsewhere, pvReleased, pvRetain), 0, true},
		"Retain, in a small cluster": {object("old", 15, elsewhere, pvReleased, pvRetain), 10, true},
		"bound":                      {object("old", 15, elsewhere), 0, true},
		"of no node":                 {object("old", 15, unlabelled), 10, true},
		"given up":                   {object("old", 15, elsewhere, pvReleased), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.config.ListUpTo = tt.listed
			r.claimed("big", 70)
			r.api.put(tt.object)
			r.old("old")
			r.start()
			if !tt.stays {
				r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
				return
			}
			r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) > 0 }, "no event")
			require.Contains(t, r.api.told("VolumeNotEvicted")[0], "PersistentVolume old names volume old, and its label flexlvm.io/node is ")
			r.eventually(r.keptAsWanted("old"), "still on offer")
			r.clock.pass(time.Hour) // a second check
			r.rounds(3)
			r.untouched("big ready", "old unreferenced", "settled ready")
			require.True(t, r.keptAsWanted("old")(), "on offer again")
			require.Zero(t, r.metric("flexlvm_gc_failures_total", "removal"))
		})
	}
}

// keptAsWanted reports whether the volume is the only released one, and counts neither as reclaimable nor as being
// removed.
func (r *rig) keptAsWanted(name string) func() bool {
	return func() bool {
		s := r.status()
		return len(s.Pools) == 1 && s.Pools[0].Reclaimable.IsZero() && s.Pools[0].Removing.IsZero() &&
			len(s.Released) == 1 && s.Released[0].Name == name && s.Released[0].Kept == flexlvmv1.KeptWanted
	}
}

// Other volumes are evicted instead. The kept volume is evicted once its PersistentVolume, which no watch of this
// node shows, is deleted.
func TestVolumeOfAnotherNodesPersistentVolumeGoesAfterIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	r.api.put(object("old", 15, unlabelled, pvRetain))
	r.old("old")
	r.start()
	r.eventually(r.keptAsWanted("old"), "still on offer")
	r.volume("other", volume.Unreferenced, 10, evictiontest.LastUsed(20))
	r.api.put(object("new", 14))
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "other unreferenced") }, "no other goes: %v", r.engine.names())
	require.Contains(t, r.engine.names(), "old unreferenced")

	r.api.fail(http.StatusInternalServerError, "get persistentvolumes")
	r.api.with(func() { delete(r.api.volumes, "old") })
	asked := r.api.requests("get persistentvolumes")
	r.clock.pass(time.Hour)
	r.eventually(func() bool { return r.api.requests("get persistentvolumes") > asked }, "not asked for again")
	r.rounds(2)
	require.Contains(t, r.engine.names(), "old unreferenced", "it goes though the API server did not answer")
	r.api.mend()
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "it is not evicted: %v", r.engine.names())
}

// An API server that does not answer is asked once for a whole batch, and does not hold up doomed volumes. A failure
// to ask it is no sign that LVM cannot remove volumes.
func TestRemovalsThatTheAPIServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.ListUpTo = 10
	r.volume("doomed_a", volume.Doomed, 5)
	for i := range 3 {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 5, evictiontest.Immediate)
	}
	r.api.fail(http.StatusInternalServerError, "get persistentvolumes")
	r.start()
	r.metricIs("flexlvm_gc_failures_total", 3)
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) == 3 }, "not told of all")
	r.rounds(3)
	require.Equal(t, []string{"old-0 unreferenced", "old-1 unreferenced", "old-2 unreferenced", "settled ready"}, r.engine.names())
	asked := r.api.requests("get persistentvolumes")
	require.Equal(t, 2, asked, "once for what is on offer, and once for what goes together")
	for i := range 3 {
		r.clock.pass(time.Minute)
		r.eventually(func() bool { return r.api.requests("get persistentvolumes") > asked+i }, "not tried again")
		r.rounds(2)
	}
	told := r.api.told("VolumeNotEvicted")
	require.Len(t, told, 3, "once of each, whichever of them the API server is asked about")
	for i := range 3 {
		name := fmt.Sprintf("old-%d", i)
		require.True(t, slices.ContainsFunc(told, func(text string) bool { return strings.Contains(text, name) }), "%s: %v", name, told)
	}
	r.api.mend()
	r.clock.pass(time.Minute)
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "left: %v", r.engine.names())
	require.Equal(t, []string{"together 3"}, r.engine.called("together"))
}

// After the API server has gone back in time, a missing PersistentVolume does not release the volume.
func TestVolumeStaysKeptOnceTheAPIServerHasGoneBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.version = 1000
	r.claimed("big", 70)
	r.api.put(object("old", 15, unlabelled, pvRetain))
	r.old("old")
	r.start()
	r.eventually(r.keptAsWanted("old"), "still on offer")
	r.calm(r.lists)
	r.api.with(func() { r.api.hung, r.api.version = true, 500 })
	r.restored(object("big", 70))
	r.api.with(func() { delete(r.api.volumes, "old") })
	r.api.cutWatches("persistentvolumes")
	for range 2 {
		r.clock.pass(time.Hour)
		r.rounds(3)
	}
	require.Contains(t, r.engine.names(), "old unreferenced")
	require.True(t, r.keptAsWanted("old")(), "on offer again")
}

// A kept volume does not hold up the other volumes of its batch.
func TestVolumeThatStaysKeepsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.put(object("old-3", 5, unlabelled, pvRetain))
	for i := range 5 {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 5, evictiontest.Immediate)
	}
	r.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"old-3 unreferenced", "settled ready"}) }, "left: %v", r.engine.names())
	r.eventually(func() bool { return len(r.api.told("VolumeNotEvicted")) > 0 }, "no event")
	r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 4 }, "not told of all")
}

func unlabelled(o *corev1.PersistentVolume) { delete(o.Labels, pv.LabelNode) }

// newOrphanRig has two orphans whose room the pool needs, only one of which may be evicted.
func newOrphanRig(t *testing.T) *rig {
	r := newRig(t)
	r.claimed("big", 70)
	r.claimed("more", 5)
	r.volume("orphan-1", volume.Ready, 8, evictiontest.LastUsed(100))
	r.volume("orphan-2", volume.Ready, 8, evictiontest.LastUsed(90))
	r.config.Policy.EvictOrphans = true
	return r
}

// The limit on the share of orphans to evict also holds across a restart.
func TestOrphanShareOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t)
	stop := r.start()
	want := []string{"big ready", "more ready", "orphan-2 ready", "settled ready"}
	r.eventually(func() bool { return slices.Equal(r.engine.names(), want) }, "left: %v", r.engine.names())
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
	stop()
	r.volume("foreign", volume.Ready, 7, func(v *inventory.Volume) { v.Cluster = "another" })
	r.start()
	r.rounds(3)
	require.Contains(t, r.engine.names(), "orphan-2 ready")
}

// An orphan counts as evicted when it is given up, even if its removal fails. Neither other evictions nor a restart
// drop it from the count.
func TestOrphanShareCountsWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t)
	r.engine.fault = func(call string) error {
		if call == "remove flexlvm/orphan-1" {
			return node.ErrInUse
		}
		return nil
	}
	stop := r.start()
	r.eventually(func() bool { return slices.Contains(r.engine.names(), "orphan-1 unreferenced") }, "not given up")
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
	for range 3 {
		r.clock.pass(10 * time.Minute)
		r.rounds(3)
	}
	require.Contains(t, r.engine.names(), "orphan-2 ready")
	for i := range 25 {
		name := fmt.Sprintf("scratch-%d", i)
		r.claimed(name, 1, pvReleased, annotated(pv.AnnotationReclaim, "immediate"))
		r.eventually(func() bool { return r.api.volume(name) == nil && len(r.engine.names()) == 5 }, "left: %v", r.engine.names())
	}
	r.eventually(func() bool { return len(r.status().Evictions) == 20 }, "in the report: %v", r.status().Evictions)
	stop()
	r.start()
	r.rounds(4)
	require.Contains(t, r.engine.names(), "orphan-2 ready")
	r.eventually(func() bool {
		return slices.ContainsFunc(r.status().Evictions, func(e flexlvmv1.Eviction) bool { return e.Name == "orphan-1" && e.Reason == "Orphan" })
	}, "the orphan is forgotten: %v", r.status().Evictions)
	r.clock.pass(25 * time.Hour)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "orphan-2 ready") }, "the share comes back: %v", r.engine.names())
}

// A short orphan age does not let all orphans be evicted at the same time.
func TestOrphanShareHoldsForAnHour(t *testing.T) {
	t.Parallel()
	r := newOrphanRig(t)
	r.config.Policy.OrphanAge = 0
	r.start()
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "none goes")
	r.volume("foreign", volume.Ready, 7, func(v *inventory.Volume) { v.Cluster = "another" }) // needs the same amount of room again
	r.clock.pass(10 * time.Minute)
	r.rounds(4)
	require.Contains(t, r.engine.names(), "orphan-2 ready")
	r.clock.pass(time.Hour)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "orphan-2 ready") }, "the share does not come back: %v", r.engine.names())
}

// Orphans are evicted one at a time, each after the report in the API has the one before.
func TestOrphansGoOnRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 54)
	for i := range 4 {
		r.volume(fmt.Sprintf("orphan-%d", i), volume.Ready, 11, evictiontest.LastUsed(100))
	}
	r.config.Policy.EvictOrphans, r.config.Policy.OrphanShare = true, 50
	r.api.fail(http.StatusServiceUnavailable, "put nodestorages")
	r.start()
	r.eventually(func() bool { return len(r.engine.called("remove")) == 1 }, "none goes")
	r.rounds(3)
	require.Len(t, r.engine.called("remove"), 1)
	r.api.with(func() { r.api.fault = nil })
	r.eventually(func() bool { return len(r.engine.called("remove")) > 1 }, "no other goes: %v", r.engine.names())
}
