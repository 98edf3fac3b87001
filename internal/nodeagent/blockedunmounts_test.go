package nodeagent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// newMountsRig has a volume that was given up and is still in use. changed waits for the watch of the mounts and reports
// a change.
func newMountsRig(t *testing.T, pause time.Duration) (r *rig, changed func()) {
	r = newRig(t)
	r.config.Interval = time.Hour
	r.tune = func(d *nodeagent.Daemon) { d.SetUnmountPause(pause) }
	var watch atomic.Pointer[func()]
	r.config.Mounts = func(ctx context.Context, changed func()) error {
		watch.Store(&changed)
		<-ctx.Done()
		return nil
	}
	r.claimed("data", 5)
	r.volume("given-up", volume.Unreferenced, 5, func(v *inventory.Volume) { v.Open, v.Reclaim = true, volume.ReclaimImmediate })
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.eventually(func() bool { return watch.Load() != nil }, "mounts are not watched")
	return r, *watch.Load()
}

// Pods mount all the time while a volume that was given up stays in use. Not each change is a round.
func TestRoundsForUnmountsAreRare(t *testing.T) {
	t.Parallel()
	r, changed := newMountsRig(t, time.Hour)
	from := r.untilQuiet()
	changed()
	r.moreRounds(from)
	from = r.untilQuiet()
	for range 100 {
		changed()
	}
	require.Equal(t, from, r.untilQuiet())
}

// A pod that was deleted by force is gone from the API before its volume is unmounted, and the API does not show the
// unmount. The volume is removed as soon as it is unmounted.
func TestVolumeGoesOnceItIsUnmounted(t *testing.T) {
	t.Parallel()
	r, changed := newMountsRig(t, time.Second)
	from := r.untilQuiet()
	changed() // another volume's mount: the next round still sees this one in use
	r.moreRounds(from)
	r.untilQuiet()
	require.Empty(t, r.engine.called("remove flexlvm/given-up"))

	r.engine.with(func() {
		for i := range r.engine.volumes {
			r.engine.volumes[i].Open = false
		}
	})
	changed()
	r.eventually(func() bool { return len(r.engine.called("remove flexlvm/given-up")) == 1 }, "it is still there")
	r.eventually(func() bool { // on a busy machine, a round that the removal has triggered may run late
		from := r.untilQuiet()
		changed()
		return r.untilQuiet() == from
	}, "nothing is held up, and rounds are made as pods come and go")
}
