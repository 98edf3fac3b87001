package nodeagent_test

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// restored adds a PersistentVolume to a restored API server. No watch shows it.
func (r *rig) restored(pv *corev1.PersistentVolume) {
	r.api.with(func() {
		pv.ResourceVersion, pv.Kind, pv.APIVersion = "1", "PersistentVolume", "v1"
		r.api.volumes[pv.Name] = pv
	})
}

// An API server is restored from a backup, and its resourceVersions reach those that the watch has shown. A list does
// not repair the watch's cache, so the daemon goes on listing until both agree.
func TestRestoredFromBackup(t *testing.T) {
	restores := map[string]func(r *rig){
		"the watch has trouble": func(r *rig) {
			comeBack := r.api.leave()
			r.eventually(func() bool { return r.failedRounds() > 0 }, "the trouble is not seen")
			r.restored(object("back-again", 15, named("wanted")))
			comeBack()
			r.eventually(r.readyIs("Ready"), "not well again")
			lists := r.lists()
			r.clock.pass(5 * time.Minute)
			r.eventually(func() bool { return r.lists() > lists }, "never listed")
		},
		"a list is older than what the watch has shown": func(r *rig) {
			r.api.with(func() { r.api.version = 1 })
			lists := r.lists()
			r.old("old")
			r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
			require.Greater(r.t, r.lists(), lists)
			r.restored(object("back-again", 15, named("wanted")))
			r.api.with(func() { r.api.version = 1000 })
		},
	}
	for name, restore := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.calmed()
			r.api.with(func() { r.api.hung = true })
			restore(r)
			r.rounds(2)
			r.old("wanted")
			r.rounds(4)
			require.Contains(t, r.engine.names(), "wanted unreferenced")
		})
	}
}

// When list and watch agree again after trouble, the daemon stops listing and gets only the PersistentVolumes that it
// needs.
func TestNoListsOnceTheWatchIsRightAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.calmed()
	comeBack := r.api.leave()
	r.eventually(func() bool { return r.failedRounds() > 0 }, "the trouble is not seen")
	comeBack()
	r.eventually(r.readyIs("Ready"), "not well again")
	lists := r.lists()
	r.clock.pass(5 * time.Minute)
	r.eventually(func() bool { return r.lists() > lists }, "never listed")
	lists = r.calm(r.lists)
	r.old("old")
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
	require.Equal(t, lists, r.lists())
}

// If the watch has trouble while the daemon catches up, the caught-up state does not prove anything, and the daemon
// lists.
func TestListAfterTroubleMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.calmed()
	var revisions, watches atomic.Int32
	again := make(chan struct{})
	r.api.with(func() {
		r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
			switch {
			case resource != "persistentvolumes":
			case verb == "list" && revisions.Add(1) == 1:
				r.api.cutWatches("persistentvolumes")
				select {
				case <-again:
				case <-t.Context().Done():
				}
			case verb == "watch" && watches.Add(1) == 1:
				reply(w, http.StatusForbidden, nil)
				return true
			case verb == "watch" && watches.Load() == 2: // the first failure has been recorded
				close(again)
			}
			return false
		}
	})
	lists := r.lists()
	r.old("old")
	r.eventually(func() bool { return !slices.Contains(r.engine.names(), "old unreferenced") }, "not evicted")
	require.Greater(t, r.lists(), lists)
}

// A restored API server accepts a watch from a resourceVersion that it has not reached again yet, and sends no events
// until then. New requests to the node are answered nevertheless, and its report is written again.
func TestRestoredStorageIsSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.version = 1000
	r.volume("data", volume.Unreferenced, 10, withFS)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.calm(func() int { return r.api.requests("put nodestorages") })
	r.api.with(func() {
		r.api.hung, r.api.version = true, 500
		r.api.storage.Status = flexlvmv1.NodeStorageStatus{}
		r.api.storage.Spec.Requests = []flexlvmv1.VolumeRequest{r.request("1", "data", volume.Retained)}
		r.api.changed("MODIFIED", r.api.storage)
	})
	r.api.cutWatches("nodestorages")
	require.True(t, r.answer("1").Done)
	require.Contains(t, r.engine.names(), "data retained")
	r.eventually(func() bool { return len(r.status().Pools) == 1 }, "the report of the backup stays")
}

// cutWatches ends the watches of some resources.
func (a *fakeAPI) cutWatches(resources ...string) {
	a.with(func() {
		for _, w := range a.watchers {
			if slices.Contains(resources, w.resource) {
				w.events <- func() {} // which cannot be encoded
			}
		}
	})
}
