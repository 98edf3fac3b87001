package nodeagent_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// named has a PersistentVolume refer to its volume by another name than its own.
func named(name string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options[volume.OptionVolume] = name }
}

func (r *rig) lists() int { return r.api.requests("list persistentvolumes") }

// calmed starts a daemon with a full pool, and waits until it sends no more requests.
func (r *rig) calmed() {
	r.claimed("big", 70)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.calm(func() int { return r.api.requests("revision") + r.lists() })
}

// old adds a volume that a full pool has to evict.
func (r *rig) old(name string) {
	r.volume(name, volume.Unreferenced, 15, evictiontest.LastUsed(50))
}

// A release and an eviction get the PersistentVolumes in question, and list none.
func TestConfirmedWithoutLists(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("given-up", 5)
	r.calmed()
	lists, gets := r.lists(), r.api.requests("get persistentvolumes")
	r.old("old")
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
	r.api.put(object("given-up", 5, pvReleased))
	r.eventually(func() bool { return r.api.volume("given-up") == nil }, "not released")
	require.Equal(t, lists, r.lists())
	require.Greater(t, r.api.requests("get persistentvolumes"), gets)
	require.Positive(t, r.api.requests("revision"))
}

// A hung watch is indistinguishable from one without events. A PersistentVolume that was created meanwhile keeps its
// volume, by whatever name it refers to the volume.
func TestHungWatchEvictsNothingThatIsWanted(t *testing.T) {
	tests := map[string]*corev1.PersistentVolume{
		"by its own name":    object("old", 15),
		"under another name": object("back-again", 15, named("old")),
		"unreadably": object("broken", 15, named("old"), func(pv *corev1.PersistentVolume) {
			pv.Spec.FlexVolume.Options["what"] = "is this"
		}),
	}
	for name, comes := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.calmed()
			r.api.with(func() { r.api.hung = true })
			r.api.put(comes)
			lists := r.lists()
			r.old("old")
			r.rounds(4)
			r.untouched("big ready", "old unreferenced", "settled ready")
			require.Equal(t, lists, r.lists(), "the watch that catches up shows it")
		})
	}
}

// The GET finds the PersistentVolume of a volume even if it was created just after the watch was caught up.
func TestGetFindsWhatTheWatchDoesNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.calmed()
	r.api.with(func() { r.api.hung = true })
	r.api.with(func() { // it is not in the history, which the caught-up watch replays
		late := object("old", 15)
		late.ResourceVersion = "1"
		late.Kind, late.APIVersion = "PersistentVolume", "v1"
		r.api.volumes["old"] = late
	})
	lists := r.lists()
	r.old("old")
	r.rounds(4)
	r.untouched("big ready", "old unreferenced", "settled ready")
	require.Greater(t, r.lists(), lists, "the list decides where watch and GET differ")
}

// If the watch cannot be caught up, a list decides. If the list fails, too, nothing is evicted.
func TestListWhereTheWatchFails(t *testing.T) {
	wounds := map[string]func(a *fakeAPI){
		"it ends before":        func(a *fakeAPI) { a.unmarked = true },
		"the server went back":  func(a *fakeAPI) { a.version = 5 },
		"there is no such past": func(a *fakeAPI) { a.history = nil; a.compacted = true },
	}
	for name, wound := range wounds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.calmed()
			r.api.with(func() { wound(r.api) })
			lists := r.lists()
			r.old("old")
			r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
			require.Greater(t, r.lists(), lists)

			r.api.fail(http.StatusForbidden, "list persistentvolumes")
			r.old("older")
			r.rounds(3)
			require.Contains(t, r.engine.names(), "older unreferenced")
		})
	}
}

// After a watch had trouble, the PersistentVolumes are listed before any action. If there is nothing to do, they are
// listed some time later.
func TestListAfterTrouble(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.calmed()
	comeBack := r.api.leave()
	r.eventually(func() bool { return r.failedRounds() > 0 }, "the trouble is not seen")
	comeBack()
	r.eventually(r.readyIs("Ready"), "not well again")
	r.rounds(2)
	relists := r.lists()
	r.rounds(2)
	require.Equal(t, relists, r.lists(), "all nodes at once")
	r.clock.pass(5 * time.Minute)
	r.eventually(func() bool { return r.lists() > relists }, "never listed")
}

// In a small cluster, the daemon confirms by a list, which is faster.
func TestListInSmallClusters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.ListUpTo = 10
	r.calmed()
	lists := r.lists()
	r.old("old")
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
	require.Greater(t, r.lists(), lists)
	require.Zero(t, r.api.requests("revision"))
}
