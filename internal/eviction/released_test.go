package eviction_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The positions match the order in which a plan evicts the volumes, and a volume that no plan evicts has none.
func TestReleased(t *testing.T) {
	s := evictiontest.New()
	s.Volume("old", volume.Unreferenced, 10, evictiontest.LastUsed(100))
	s.Volume("newer", volume.Unreferenced, 10, evictiontest.LastUsed(50))
	s.Volume("at-once", volume.Unreferenced, 10, evictiontest.Immediate)
	s.Volume("named", volume.Unreferenced, 10)
	s.PersistentVolume("named", 10)
	s.Volume("kept", volume.Retained, 10)
	s.Volume("foreign", volume.Unreferenced, 10, func(v *inventory.Volume) { v.Cluster = "another" })
	s.PersistentVolume("large", 80, func(c *persistentvolume.Volume) { c.Size = 40 * volume.GiB; c.Charged = 60 * volume.GiB })
	result := s.Plan()
	got := map[string]string{}
	for _, r := range result.Released {
		got[string(r.Volume.Name)] = fmt.Sprint(r.Order, r.Kept)
	}
	require.Equal(t, map[string]string{
		"at-once": "1", "old": "2", "newer": "3", "named": "0" + string(eviction.KeptWanted), "kept": "0" + string(eviction.KeptRetained),
	}, got)
	require.Equal(t, []string{"Immediate at-once", "Promised old", "Promised newer"}, evictiontest.Evicted(result))
}
