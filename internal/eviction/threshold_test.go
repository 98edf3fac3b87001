package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPlanThresholdSaysHowMuch(t *testing.T) {
	s := evictiontest.New()
	s.Volume("old", unreferenced, 12, evictiontest.LastUsed(9))
	s.Others(1, 75)
	r := s.Plan()
	require.Equal(t, "pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%; 8 GiB must go to reach the low threshold of 80%; "+
		"this volume gives back 12 GiB: volume flexlvm/old of namespace db was given up 4h ago and last used 9h ago", r.Evictions[0].Message)
	require.Equal(t, "pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%", r.Pools[0].PressureMessage)
	require.Empty(t, r.Pools[0].InUseMessage)
}

// A pool that volumes in use alone fill beyond its thresholds keeps what is given up, until
// that is as much as lies between the thresholds elsewhere.
func TestPlanOfAPoolFullOfVolumesInUse(t *testing.T) {
	s := evictiontest.New()
	s.Others(1, 85)
	s.Volume("busy", unreferenced, 3, func(v *inventory.Volume) { v.Open = true })
	s.Volume("given-up", unreferenced, 2, evictiontest.LastUsed(9))
	r := s.Plan()
	require.Empty(t, evictiontest.Evicted(r), "it would go, and the low threshold not be reached")
	require.Zero(t, r.Pools[0].Shortfall)
	require.True(t, r.Pools[0].Pressure)
	require.Equal(t, "pool flexlvm is 91% full (91 GiB of 100 GiB), the high threshold is 85%, and volumes in use fill it beyond the low one; "+
		"3 GiB in 1 unreferenced volume cannot go while in use; extend volume group flexlvm (`vgextend --metadatasize 16m flexlvm DEVICE`), or delete claims that nobody needs", r.Pools[0].InUseMessage)

	s.Volume("young", unreferenced, 4, evictiontest.ReleasedAgo(time.Minute))
	require.Empty(t, evictiontest.Evicted(s.Plan()), "what is too young is no reason for others to go")
	s.View.Now = evictiontest.Now.Add(time.Hour)
	r = s.Plan()
	require.Equal(t, []string{"HighThreshold given-up", "HighThreshold young"}, evictiontest.Evicted(r))
	require.Contains(t, r.Evictions[0].Message, "pool flexlvm is 95% full (95 GiB of 100 GiB), the high threshold is 85%; 6 GiB must go to reach the 89% that volumes in use take")

	s.PersistentVolume("promised", 12)
	require.Equal(t, 1*volume.GiB, s.Plan().Pools[0].Shortfall, "what is promised is missed all the same")
	require.NotContains(t, s.Plan().Pools[0].ShortfallMessage, "threshold")
}
