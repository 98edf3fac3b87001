package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPlanThresholdSaysHowMuch(t *testing.T) {
	s := evictiontest.New()
	s.Volume("old", unreferenced, 12, evictiontest.LastUsed(9))
	s.ForeignVolumes(1, 75)
	r := s.Plan()
	require.Equal(t, "pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%; 8 GiB must be evicted to reach the low threshold of 80%; "+
		"evicting it frees 12 GiB: volume flexlvm/old of namespace db was given up 4h ago and last used 9h ago", r.Evictions[0].Message)
	require.Equal(t, "pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%", r.Pools[0].PressureMessage)
	require.Empty(t, r.Pools[0].InUseMessage)
}

// A pool that volumes in use alone fill beyond its thresholds keeps its unreferenced volumes, until these hold as
// much as lies between the thresholds.
func TestPlanOfAPoolFullOfVolumesInUse(t *testing.T) {
	s := evictiontest.New()
	s.ForeignVolumes(1, 85)
	s.Volume("busy", unreferenced, 3, func(v *inventory.Volume) { v.Open = true })
	s.Volume("given-up", unreferenced, 2, evictiontest.LastUsed(9))
	r := s.Plan()
	require.Empty(t, evictiontest.Evicted(r), "it would go, and the low threshold not be reached")
	require.Zero(t, r.Pools[0].Shortfall)
	require.True(t, r.Pools[0].Pressure)
	require.Equal(t, "pool flexlvm is 91% full (91 GiB of 100 GiB), the high threshold is 85%, and volumes in use fill it beyond the low one; "+
		"3 GiB in 1 unreferenced volume cannot be evicted while in use; extend volume group flexlvm (`vgextend --metadatasize 16m flexlvm DEVICE`), or delete claims that nobody needs", r.Pools[0].InUseMessage)

	s.Volume("young", unreferenced, 4, evictiontest.ReleasedAgo(time.Minute))
	require.Empty(t, evictiontest.Evicted(s.Plan()), "what is too young is no reason for others to go")
	s.View.Now = evictiontest.Now.Add(time.Hour)
	r = s.Plan()
	require.Equal(t, []string{"HighThreshold given-up", "HighThreshold young"}, evictiontest.Evicted(r))
	require.Contains(t, r.Evictions[0].Message, "pool flexlvm is 95% full (95 GiB of 100 GiB), the high threshold is 85%; 6 GiB must be evicted to reach the 89% that cannot be evicted")

	s.PersistentVolume("promised", 12)
	require.Equal(t, 1*volume.GiB, s.Plan().Pools[0].Shortfall, "what is promised is missed all the same")
	require.NotContains(t, s.Plan().Pools[0].ShortfallMessage, "threshold")
}

// A volume that cannot be removed is no reason to evict every volume as soon as it is released: that would not reach
// the low threshold either. Its room is a shortfall.
func TestPlanOfAPoolFullOfVolumesInUseWithAFailedRemoval(t *testing.T) {
	s := evictiontest.New()
	s.ForeignVolumes(1, 78)
	s.Volume("doomed_x", volume.Doomed, 6, evictiontest.WithProblem)
	s.Volume("given-up", unreferenced, 3, evictiontest.LastUsed(9))
	r := s.Plan()
	require.Empty(t, evictiontest.Evicted(r), "it would go, and the low threshold not be reached")
	require.Equal(t, 5*volume.GiB, r.Pools[0].Shortfall)
	require.Contains(t, r.Pools[0].ShortfallMessage, "pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%, and evicting all that may be evicted would leave 5 GiB too much for the low threshold of 80%; "+
		"1 volume that was given up could not be removed (flexlvm/doomed_x: odd)")
	require.Empty(t, r.Pools[0].InUseMessage)

	s.Volume("more", unreferenced, 4, evictiontest.LastUsed(8))
	r = s.Plan()
	require.Equal(t, []string{"HighThreshold given-up", "HighThreshold more"}, evictiontest.Evicted(r))
	require.Equal(t, 5*volume.GiB, r.Pools[0].Shortfall)
	require.Contains(t, r.Pools[0].ShortfallMessage, "and nothing more may be evicted: 5 GiB too much for the low threshold of 80%")
}

// Every volume group of the host is a pool. The operating system's, which is full from the beginning, is not reported
// until flexlvm has a volume or a promise in it.
func TestThresholdsAreForPoolsThatFlexlvmUses(t *testing.T) {
	s := evictiontest.New()
	s.Pool("rl", 50)
	rl := s.PoolNamed("rl")
	rl.Free, rl.LVs = 0, 3
	quiet := func() {
		t.Helper()
		of := s.Plan().Pools[1]
		require.Equal(t, volume.PoolName("rl"), of.Pool.Name)
		require.Equal(t, 100, of.UsedPercent)
		require.False(t, of.Pressure, of.PressureMessage)
		require.Zero(t, of.Shortfall, of.ShortfallMessage)
		require.Empty(t, of.InUseMessage)
	}
	quiet()
	settled := s.View.PersistentVolumes
	s.View.PersistentVolumes = nil
	require.NotEmpty(t, s.Plan().Blocked)
	quiet()

	s.View.PersistentVolumes = settled
	s.PersistentVolume("promised", 2, func(c *persistentvolume.Volume) { c.Group = "rl" })
	of := s.Plan().Pools[1]
	require.True(t, of.Pressure)
	require.Equal(t, 2*volume.GiB, of.Shortfall, "what is promised in it counts, whoever fills it")

	s.View.PersistentVolumes = settled
	s.Volume("orphan", volume.Ready, 0, evictiontest.InGroup("rl"))
	of = s.Plan().Pools[1]
	require.True(t, of.Pressure, "a volume of flexlvm counts, also an orphan")
	require.NotEmpty(t, of.InUseMessage)
}
