package nodeagent_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// full fills the pool so that "old" has to be evicted.
func (r *rig) full() {
	r.claimed("big", 70)
	r.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
}

func (r *rig) untouched(want ...string) {
	r.t.Helper()
	require.Equal(r.t, slices.Sorted(slices.Values(want)), r.engine.names())
	require.Empty(r.t, r.engine.called("release"))
	require.Empty(r.t, r.engine.called("remove"))
}

// If the API server is unreachable, refuses, is slow, has lost its objects or is another cluster's, nothing is
// evicted. After it recovers, the daemon catches up.
func TestAPIFaults(t *testing.T) {
	tests := map[string]struct {
		before func(r *rig) // the daemon starts
		wound  func(r *rig)
		mend   func(r *rig)
		reason string // of condition Ready, if the condition can be written
	}{
		"away":                  {wound: func(r *rig) { r.api.fail(0) }},
		"refuses":               {wound: func(r *rig) { r.back = r.api.leave() }, mend: func(r *rig) { r.back() }},
		"errors":                {wound: func(r *rig) { r.api.fail(http.StatusInternalServerError) }},
		"unauthorized":          {wound: func(r *rig) { r.api.fail(http.StatusUnauthorized) }},
		"overloaded":            {wound: func(r *rig) { r.api.fail(http.StatusTooManyRequests) }},
		"the list is forbidden": {wound: func(r *rig) { r.api.fail(http.StatusForbidden, "list persistentvolumes") }, reason: "APIUnavailable"},
		"the list fails":        {wound: func(r *rig) { r.api.fail(http.StatusInternalServerError, "list persistentvolumes") }, reason: "APIUnavailable"},
		"no answer to the list": {wound: func(r *rig) { r.api.fail(0, "list persistentvolumes") }, reason: "APIUnavailable"},
		"slow": {
			before: func(r *rig) { r.api.clientTimeout = time.Second },
			wound: func(r *rig) {
				answer := make(chan struct{})
				r.back = sync.OnceFunc(func() { close(answer) })
				r.t.Cleanup(r.back)
				r.api.with(func() {
					r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
						if verb+" "+resource == "list persistentvolumes" {
							<-answer
						}
						return false
					}
				})
			},
			mend:   func(r *rig) { r.back() },
			reason: "APIUnavailable",
		},
		"another cluster": {
			wound:  func(r *rig) { r.api.with(func() { r.api.cluster = "another" }) },
			mend:   func(r *rig) { r.api.with(func() { r.api.cluster = evictiontest.Cluster }) },
			reason: "APIUnavailable",
		},
		"empty": {
			wound: func(r *rig) {
				r.api.with(func() {
					for _, pv := range r.api.volumes {
						delete(r.api.volumes, pv.Name)
						r.api.changed("DELETED", pv)
					}
				})
			},
			mend: func(r *rig) {
				r.api.put(object("settled", 1))
				r.api.put(object("big", 70))
			},
			reason: "EvictionBlocked",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("big", 70)
			if tt.before != nil {
				tt.before(r)
			}
			r.start()
			r.eventually(r.readyIs("Ready"), "not ready before the fault")
			tt.wound(r)
			r.volume("old", volume.Unreferenced, 15, evictiontest.LastUsed(50))
			r.rounds(3)
			r.untouched("big ready", "settled ready", "old unreferenced")
			if tt.reason != "" {
				r.eventually(r.readyIs(tt.reason), "the condition is %v", r.condition("Ready"))
				require.Equal(t, "False", string(r.condition("Ready").Status))
			}
			// A blocked round has read everything, and counts as successful.
			if tt.reason != "EvictionBlocked" {
				r.eventually(func() bool { return r.failedRounds() > 0 }, "no round is counted as failed")
			}

			r.api.mend()
			if tt.mend != nil {
				tt.mend(r)
			}
			r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "the daemon does not catch up")
			r.eventually(r.readyIs("Ready"), "the condition stays %v", r.condition("Ready"))
			require.Equal(t, []string{"big ready", "settled ready"}, r.engine.names())
		})
	}
}

// An idle daemon notices that it cannot reach the API server, and its rounds keep failing until it can.
func TestAwayWhileIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	comeBack := r.api.leave()
	const last = "flexlvm_gc_last_successful_round_timestamp_seconds"
	r.eventually(func() bool {
		was := r.metric(last)
		r.clock.pass(time.Second)
		r.rounds(2)
		return r.metric(last) == was
	}, "rounds succeed without an API server")
	was := r.metric(last)
	for range 3 {
		r.clock.pass(time.Second)
		r.rounds(2)
	}
	require.Equal(t, was, r.metric(last), "believed again")
	comeBack()
	r.eventually(func() bool { return r.metric(last) > was }, "it is not found again")
}

// A round whose report is refused counts as failed, but updates the metrics.
func TestReportThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.api.fail(http.StatusUnprocessableEntity, "put nodestorages")
	r.volume("more", volume.Ready, 1) // so that the report changes
	r.eventually(func() bool { return r.metric("flexlvm_gc_rounds_total", "NotPublished") > 0 }, "no round is counted as failed")
	r.eventually(func() bool { return r.metric("flexlvm_orphans") == 1 }, "what was seen is not told")
	const last = "flexlvm_gc_last_successful_round_timestamp_seconds"
	was := r.metric(last)
	r.clock.pass(time.Second)
	r.rounds(2)
	require.Equal(t, was, r.metric(last))
	r.api.mend()
	r.eventually(func() bool { return r.metric(last) > was }, "it does not go on")
}

// If the watch differs from the API server, the API server's current answer counts, in the same round.
func TestStaleWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	// The watch gets an event of the release, but the API server's object is not released.
	r.api.with(func() {
		stale := r.api.volumes["data"].DeepCopy()
		stale.Status.Phase = corev1.VolumeReleased
		r.api.changed("MODIFIED", stale)
	})
	r.rounds(3)
	require.Empty(t, r.engine.called("release"))
	require.Contains(t, r.engine.names(), "data ready")
}

// Nothing is done before the watches have synced.
func TestNoWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	r.api.fail(http.StatusForbidden, "watch persistentvolumes", "list persistentvolumes")
	r.start()
	r.eventually(r.readyIs("APIUnavailable"), "the condition is %v", r.condition("Ready"))
	r.rounds(2)
	r.untouched("big ready", "settled ready", "old unreferenced")
}

func TestLVMFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	broken := func(call string) error {
		if call == "inventory" {
			return errors.New("vgs: exit code 5")
		}
		return nil
	}
	r.engine.with(func() { r.engine.fault = broken })
	r.start()
	r.eventually(r.readyIs("LVMFailed"), "the condition is %v", r.condition("Ready"))
	require.Contains(t, r.condition("Ready").Message, "vgs: exit code 5")
	r.rounds(2)
	r.untouched("big ready", "settled ready", "old unreferenced")
	require.Zero(t, r.ready.Load(), "ready without a round")

	r.engine.with(func() { r.engine.fault = nil })
	r.eventually(r.readyIs("Ready"), "the condition stays")
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
}

// If LVM hangs until the round times out, that is reported all the same.
func TestLVMHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	r.tune = func(d *nodeagent.Daemon) { d.SetRoundTime(100 * time.Millisecond) }
	hangs := make(chan struct{})
	r.engine.with(func() { r.engine.hangs = hangs })
	r.start()
	r.eventually(r.readyIs("LVMFailed"), "the condition is %v", r.condition("Ready"))
	require.Contains(t, r.condition("Ready").Message, context.DeadlineExceeded.Error())
	r.rounds(2)
	r.untouched("big ready", "settled ready", "old unreferenced")
}

// A disk that hangs the creation of volume groups leaves time to observe the volumes.
func TestDeclaringHangs(t *testing.T) {
	t.Parallel()
	r, m := newGroupRig(t)
	r.tune = func(d *nodeagent.Daemon) { d.SetRoundTime(10 * time.Second) }
	m.hangs = true
	r.api.putGroup(volumeGroup("fast"))
	r.start()
	r.eventually(func() bool { return strings.Contains(r.declaredStates(), context.DeadlineExceeded.Error()) }, "states: %s", r.declaredStates())
	r.eventually(r.readyIs("Ready"), "the condition is %v", r.condition("Ready"))
	require.Zero(t, r.failedRounds())
}

// A node without LVM's programs must not stop the rollout of the DaemonSet: the daemon is ready once its
// published report names the missing programs, and not before.
func TestReadyWithoutPrograms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Missing = func() []string { return []string{"lvm", "vgs"} }
	r.engine.with(func() { r.engine.fault = func(string) error { return errors.New("vgs: executable file not found") } })
	r.api.fail(http.StatusServiceUnavailable, "put nodestorages")
	r.start()
	r.rounds(3)
	require.Zero(t, r.ready.Load(), "ready, and nobody can see what is missing")

	r.api.with(func() { r.api.fault = nil })
	r.eventually(r.readyIs("ToolsMissing"), "the condition is %v", r.condition("Ready"))
	r.eventually(func() bool { return r.ready.Load() > 0 }, "not ready")
	require.NotZero(t, r.failedRounds())
	require.Zero(t, r.metric("flexlvm_gc_tools_missing"), "its PersistentVolume needs LVM, so the alert must fire")
	r.api.with(func() {
		gone := r.api.volumes["settled"]
		delete(r.api.volumes, "settled")
		r.api.changed("DELETED", gone)
	})
	r.eventually(func() bool { return r.metric("flexlvm_gc_tools_missing") == 1 }, "the alert fires for a node that nobody uses")
}

// Two daemons run at the same time, as for a moment during an update of the DaemonSet.
func TestTwoDaemons(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		r.claimed(name, 10, pvReleased, annotated(pv.AnnotationReclaim, "immediate"))
	}
	r.start()
	second := &rig{t: t, api: r.api, engine: r.engine, clock: r.clock, config: r.config}
	second.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "left: %v", r.engine.names())
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		r.eventually(func() bool { return r.api.volume(name) == nil }, "%s stays", name)
	}
	r.eventually(r.readyIs("Ready"), "the condition is %v", r.condition("Ready"))
	require.NotNil(t, r.api.volume("settled"))
}

// A PersistentVolume that cannot be parsed protects every volume that it may refer to.
func TestUnreadableProtects(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	r.volume("other", volume.Unreferenced, 5, evictiontest.LastUsed(40))
	r.api.put(object("old", 15, func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options["colour"] = "red" }))
	r.start()
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "other unreferenced") }, "the other is not evicted")
	r.rounds(3)
	require.Contains(t, r.engine.names(), "old unreferenced")
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "colour")
	require.EqualValues(t, 1, r.metric("flexlvm_attention_persistentvolumes"))
}

// A PersistentVolume that cannot be parsed may be a clone that does not exist yet. The clone's source stays, even if
// nothing else needs it.
func TestUnreadableProtectsItsSource(t *testing.T) {
	options := map[string]string{volume.OptionGroup: "flexlvm", volume.OptionCloneOf: "snap-1", "colour": "red"}
	for name, unread := range map[string]func(*corev1.PersistentVolume){
		"FlexVolume": func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options = options },
		"CSI": func(o *corev1.PersistentVolume) {
			o.Spec.FlexVolume = nil
			o.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: pv.Provisioner, VolumeHandle: "flexlvm/restored", VolumeAttributes: options}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.api.put(object("restored", 10, unread))
			r.claimed("snap-1", 10, pvReleased)
			r.claimed("old", 5, pvReleased)
			r.start()
			r.eventually(func() bool { return slices.Contains(r.engine.names(), "old unreferenced") }, "not released: %v", r.engine.names())
			r.rounds(3)
			require.Contains(t, r.engine.names(), "snap-1 ready")
		})
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.full()
	r.claimed("data", 5, pvReleased)
	r.volume("doomed_gone", volume.Doomed, 1)
	r.config.DryRun = true
	r.start()
	r.eventually(r.readyIs("DryRun"), "the condition is %v", r.condition("Ready"))
	r.rounds(3)
	r.untouched("big ready", "settled ready", "old unreferenced", "data ready", "doomed_gone doomed")
	require.NotNil(t, r.api.volume("data"))
	require.Zero(t, r.api.requests("delete persistentvolumes"))
	require.Zero(t, r.api.requests("patch persistentvolumes"))
	require.Empty(t, r.api.told("VolumeEvicted"))
}

// A waiting removal was decided by a round that had confirmed it with the API server. After a failed round it is no
// longer confirmed, so the volume stays.
func TestFailedRoundClearsRemovals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wiping := make(chan struct{})
	r.engine.with(func() { r.engine.wiping = wiping })
	zero := func(v *inventory.Volume) { v.Wipe = volume.WipeZero }
	r.claimed("big", 70)
	r.volume("first", volume.Unreferenced, 14, evictiontest.LastUsed(100), zero)
	r.volume("second", volume.Unreferenced, 14, evictiontest.LastUsed(50), zero)
	r.start()
	r.eventually(func() bool { return slices.Contains(r.engine.names(), "doomed_first doomed") }, "the first is not being wiped: %v", r.engine.names())
	require.Contains(t, r.engine.names(), "second unreferenced", "it waits for the first")

	r.api.fail(http.StatusInternalServerError)
	before := r.failedRounds()
	r.eventually(func() bool { return r.failedRounds() > before }, "no round fails")
	close(wiping)
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "doomed_first doomed") }, "what was begun is not finished")
	r.rounds(3)
	require.Equal(t, []string{"big ready", "second unreferenced", "settled ready"}, r.engine.names())

	r.api.mend()
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "second unreferenced") }, "the daemon does not catch up")
}
