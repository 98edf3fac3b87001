package nodeagent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// An API server that is restored from a backup lacks newer PersistentVolumes. Their volumes look like orphans, and
// there may be few of them.
func TestOrphansOfARestoredAPIServerStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Policy.EvictOrphans = true
	r.api.version = 1000
	r.claimed("big", 70)
	r.claimed("more", 5)
	r.claimed("made-since", 15)
	r.engine.with(func() {
		for i := range r.engine.volumes {
			old(&r.engine.volumes[i])
		}
	})
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.calm(r.lists)
	require.Zero(t, r.metric("flexlvm_gc_orphan_eviction_blocked"))
	r.api.with(func() {
		r.api.hung, r.api.version = true, 500
		delete(r.api.volumes, "made-since")
	})
	for range 2 {
		r.clock.pass(6 * time.Minute)
		r.eventually(r.readyIs("OrphanEvictionBlocked"), "it is not told: %v", r.condition("Ready"))
		r.rounds(3)
		r.untouched("big ready", "made-since ready", "more ready", "settled ready")
		require.EqualValues(t, 1, r.metric("flexlvm_gc_orphan_eviction_blocked"))
		require.Contains(t, r.condition("Ready").Message, "after 1")
		require.Contains(t, r.condition("Ready").Message, "flexlvm volumes undelete")
		r.api.with(func() { r.api.version = 2000 }) // its versions continue, without the lost objects
	}
	require.NotEmpty(t, r.api.told("EvictionBlocked"))
}

// A PersistentVolume that is released in the backup may have been bound to another claim since, which uses its
// volume.
func TestReleasedVolumesOfARestoredAPIServerStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.version = 1000
	r.claimed("back", 10)
	stop := r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.calm(r.lists)
	r.api.with(func() { r.api.hung, r.api.version = true, 500 })
	r.restored(object("back", 10, pvReleased, annotated(pv.AnnotationReclaim, "immediate")))
	r.api.cutWatches("persistentvolumes")
	for range 2 {
		r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) > 0 }, "it is not told")
		r.clock.pass(6 * time.Minute)
		r.rounds(3)
		r.untouched("back ready", "settled ready")
		require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "the API server has gone back in time (resourceVersion 500 after 1")
		r.metricIs("flexlvm_attention_persistentvolumes", 1)
		r.api.with(func() { r.api.version = 2000 }) // its versions continue, without the lost objects
	}
	stop()
	r.start()
	r.eventually(func() bool { return r.api.volume("back") == nil }, "not released by the next one: %v", r.engine.names())
}

// old sets a last use that is long enough ago for an orphan.
func old(v *inventory.Volume) { evictiontest.LastUsed(100)(v) }
