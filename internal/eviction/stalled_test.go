package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Claims are not offered the room of evictable volumes in a pool in which two removals have failed, and are promised
// nothing, so the pool has no shortfall. The plan says why they wait.
func TestStalledPoolSaysWhyClaimsWait(t *testing.T) {
	failed := func(names ...string) func(*evictiontest.Scene) {
		return func(s *evictiontest.Scene) {
			for _, name := range names {
				s.Volume("doomed_"+name, volume.Doomed, 5, evictiontest.WithProblem)
			}
		}
	}
	old := func(s *evictiontest.Scene) { s.Volume("old", unreferenced, 10) }
	for name, tt := range map[string]struct {
		scene   []func(*evictiontest.Scene)
		message string
	}{
		"two removals have failed": {
			[]func(*evictiontest.Scene){failed("x", "y"), old, func(s *evictiontest.Scene) { s.Replica("ds", 20) }},
			"30 GiB in 2 volumes could be evicted from pool flexlvm, but claims are not offered that room; " +
				"2 volumes that were given up could not be removed (flexlvm/doomed_x: odd), so no more are given up for their room until that is corrected; " +
				"extend volume group flexlvm (`vgextend --metadatasize 16m flexlvm DEVICE`), or delete claims that nobody needs",
		},
		"one removal has failed":    {[]func(*evictiontest.Scene){failed("x"), old}, ""},
		"nothing could be evicted":  {[]func(*evictiontest.Scene){failed("x", "y")}, ""},
		"it is evicted in any case": {[]func(*evictiontest.Scene){failed("x", "y"), func(s *evictiontest.Scene) { s.Volume("now", unreferenced, 10, evictiontest.Immediate) }}, ""},
		"it frees no room that LVM may allocate": {[]func(*evictiontest.Scene){failed("x", "y"), func(s *evictiontest.Scene) {
			s.Volume("closed", unreferenced, 10, onClosed(10))
			g := s.PoolNamed("flexlvm")
			g.Devices, g.DeviceFree = []string{"/dev/open"}, []volume.Bytes{g.Free}
		}}, ""},
		"only an orphan could be": {[]func(*evictiontest.Scene){failed("x", "y"), func(s *evictiontest.Scene) {
			s.Policy.EvictOrphans = true
			s.Volume("orphan", volume.Ready, 10, evictiontest.LastUsed(400))
		}}, ""},
		"nothing is evicted at all": {[]func(*evictiontest.Scene){failed("x", "y"), old, func(s *evictiontest.Scene) { s.View.PersistentVolumes = nil }}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			for _, change := range tt.scene {
				change(s)
			}
			of := s.Plan().Pools[0]
			require.Zero(t, of.Shortfall, of.ShortfallMessage)
			require.Equal(t, tt.message, of.StalledMessage)
		})
	}

	s := evictiontest.New()
	failed("x", "y")(s)
	old(s)
	s.PersistentVolume("promised", 100)
	of := s.Plan().Pools[0]
	require.Contains(t, of.ShortfallMessage, "so no more are given up for their room")
	require.Empty(t, of.StalledMessage, "the shortfall says so")
}
