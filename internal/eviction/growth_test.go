package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Volumes are evicted for a promised growth in the same way as for one that has been granted.
func TestPlanEvictsForPromisedGrowth(t *testing.T) {
	plan := func(change func(*persistentvolume.Volume)) eviction.PoolResult {
		s := evictiontest.New()
		s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) {
			c.Size, c.Charged = 10*volume.GiB, volume.XFSDeviceSize(10*volume.GiB, 0)
			change(c)
		})
		s.Volume("a", volume.Ready, 0, func(v *inventory.Volume) {
			v.Size, v.Allocated = 10*volume.GiB, volume.XFSDeviceSize(10*volume.GiB, 0)
		})
		result := s.Plan()
		require.Len(t, result.Pools, 1)
		return result.Pools[0]
	}
	settled := plan(func(*persistentvolume.Volume) {})
	promised := plan(func(c *persistentvolume.Volume) { c.Growing = 20 * volume.GiB })
	granted := plan(func(c *persistentvolume.Volume) { *c = c.Grown(20 * volume.GiB) })
	require.Zero(t, settled.Promised)
	require.Equal(t, volume.XFSDeviceSize(20*volume.GiB, 0)-volume.XFSDeviceSize(10*volume.GiB, 0), promised.Promised)
	require.Equal(t, granted.Promised, promised.Promised)
	require.Equal(t, settled.Allocatable, promised.Allocatable, "whoever takes off the charges takes the growth off")
}

// A thin volume grows only if all that it grows by is free at one moment, even if its class promises less. No more
// than that is evicted, and nothing if it cannot be reached.
func TestThinGrowthNeedsRoomAtOneMoment(t *testing.T) {
	grows := func(to volume.Bytes) (volume.Bytes, []eviction.Eviction) {
		s := newThinScene()
		for _, name := range []string{"old-1", "old-2", "old-3", "old-4"} {
			s.thin(name, volume.Unreferenced, 20, func(v *inventory.Volume) { v.Allocated = 20 * volume.GiB })
		}
		s.thin("a", volume.Ready, 0, func(v *inventory.Volume) {
			v.Size, v.AllocatedWhenFull, v.Allocated = 10*volume.GiB, volume.XFSDeviceSize(10*volume.GiB, 0), 10*volume.GiB
		})
		s.thinClaim("a", 10, func(c *persistentvolume.Volume) {
			c.Shape.Ratio, c.Size, c.Charged, c.Growing = 10000, 10*volume.GiB, 2*volume.GiB, to
		})
		s.Policy.HighPercent = 100
		need := volume.XFSDeviceSize(to, 0) - volume.XFSDeviceSize(10*volume.GiB, 0)
		return need, s.Plan().Evictions
	}
	need, evicted := grows(30 * volume.GiB) // 10 GiB are free
	require.Len(t, evicted, 1)
	require.Less(t, need, 30*volume.GiB)
	require.Contains(t, evicted[0].Message, "a volume is promised to grow by 20.46 GiB, which must be free at one moment")

	_, evicted = grows(15 * volume.GiB)
	require.Empty(t, evicted, "there is room")
	_, evicted = grows(150 * volume.GiB)
	require.Empty(t, evicted, "all of it would not do")
}
