package nodeagent_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// reclaimable returns the reported reclaimable room in GiB; -1 before the first report.
func (r *rig) reclaimable() int {
	s := r.status()
	if len(s.Pools) == 0 {
		return -1
	}
	return int(s.Pools[0].Reclaimable.Value() / int64(volume.GiB))
}

// No report offers the room of a volume that another node's PersistentVolume keeps. That holds from the first report
// of a process on, even if nothing has to be evicted.
func TestKeptVolumeIsNeverOnOffer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.put(object("old", 15, unlabelled, pvRetain))
	r.old("old")
	for range 2 {
		stop := r.start()
		r.eventually(r.keptAsWanted("old"), "on offer")
		r.rounds(2)
		stop()
	}
	r.api.with(func() {
		for _, c := range r.api.history {
			reported, is := c.event.(map[string]any)["object"].(*flexlvmv1.NodeStorage)
			if is && len(reported.Status.Pools) > 0 {
				require.True(t, reported.Status.Pools[0].Reclaimable.IsZero(), "was on offer")
			}
		}
	})
	require.Empty(t, r.engine.called("remove"))
}

// All of many unreferenced volumes are on offer after a few rounds. The API server is asked about each volume once.
func TestUnreferencedVolumesAreCheckedOnce(t *testing.T) {
	t.Parallel()
	const many = 70 // more volumes than one round asks about
	r := newRig(t)
	for i := range many {
		r.volume(fmt.Sprintf("old-%d", i), volume.Unreferenced, 1)
	}
	r.volume("replica", volume.Unreferenced, 1, func(v *inventory.Volume) { v.Kind = volume.Dataset })
	r.start()
	r.eventually(func() bool { return r.reclaimable() == many+1 }, "on offer: %d", r.reclaimable())
	r.rounds(3)
	require.Equal(t, many, r.api.requests("get persistentvolumes"))
}

// A released volume is not asked about: its release has already asked the API server.
func TestReleasedVolumeIsNotChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.Policy.MinAge = 0
	r.claimed("data", 5, pvReleased)
	r.start()
	r.eventually(func() bool { return r.api.volume("data") == nil }, "not released")
	r.eventually(func() bool { return r.reclaimable() == 5 }, "not on offer: %d", r.reclaimable())
	gets := r.api.requests("get persistentvolumes")
	r.rounds(3)
	require.Equal(t, gets, r.api.requests("get persistentvolumes"))
	require.Equal(t, 3, gets, "two steps of the release, and the removal of the finalizer, ask for the PersistentVolume")
}

// While the API server does not answer whether a volume is kept, the volumes that it has answered for stay on offer.
func TestOfferWhileTheAPIServerDoesNotSay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("known", volume.Unreferenced, 5)
	r.start()
	r.eventually(func() bool { return r.reclaimable() == 5 }, "not on offer: %d", r.reclaimable())
	r.api.fail(http.StatusInternalServerError, "get persistentvolumes")
	r.volume("unknown", volume.Unreferenced, 20, evictiontest.LastUsed(100))
	r.eventually(func() bool { return len(r.status().Released) == 2 }, "not seen")
	asked := r.api.requests("get persistentvolumes")
	r.rounds(3)
	require.Equal(t, 5, r.reclaimable())
	require.Equal(t, asked, r.api.requests("get persistentvolumes"), "asked again too early: the clock stands")
	r.api.mend()
	r.clock.pass(soon)
	r.eventually(func() bool { return r.reclaimable() == 25 }, "not on offer: %d", r.reclaimable())
}
