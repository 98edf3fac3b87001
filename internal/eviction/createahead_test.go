package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Only an empty file system that fits beside all promises is created ahead, whether or not the round has observed its
// claim.
func TestMayCreateAhead(t *testing.T) {
	claim := func(change func(*persistentvolume.Volume)) func(*evictiontest.Scene, *persistentvolume.Volume) {
		return func(_ *evictiontest.Scene, c *persistentvolume.Volume) { change(c) }
	}
	scene := func(change func(*evictiontest.Scene)) func(*evictiontest.Scene, *persistentvolume.Volume) {
		return func(s *evictiontest.Scene, _ *persistentvolume.Volume) { change(s) }
	}
	thin := func(free int) func(*evictiontest.Scene, *persistentvolume.Volume) {
		return func(s *evictiontest.Scene, c *persistentvolume.Volume) {
			s.Pool("flexlvm/thin", free)
			s.PoolNamed("flexlvm/thin").Thin = &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: true}
			c.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thin"}
			s.PersistentVolume("other", 30, func(other *persistentvolume.Volume) { other.Shape = c.Shape })
		}
	}
	for name, tt := range map[string]struct {
		change func(*evictiontest.Scene, *persistentvolume.Volume)
		may    bool
	}{
		"it is new":                   {claim(func(*persistentvolume.Volume) {}), true},
		"bound":                       {claim(evictiontest.Phase(corev1.VolumeBound)), true},
		"released":                    {claim(evictiontest.Phase(corev1.VolumeReleased)), false},
		"being deleted":               {claim(evictiontest.Deleting), false},
		"of another cluster":          {claim(evictiontest.OtherCluster), false},
		"of no cluster":               {claim(evictiontest.NoCluster), false},
		"of another group":            {claim(evictiontest.OtherGroup), false},
		"of a group that is not here": {claim(func(c *persistentvolume.Volume) { c.Group = "elsewhere" }), false},
		"of a pool that is not here":  {claim(func(c *persistentvolume.Volume) { c.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thin"} }), false},
		"a copy":                      {claim(evictiontest.CopyOf("other")), false},
		"a directory":                 {claim(func(c *persistentvolume.Volume) { c.Shape.Layout = volume.Directory }), false},
		"encrypted":                   {claim(func(c *persistentvolume.Volume) { c.Encrypted = true }), false},
		"a raw block volume":          {claim(func(c *persistentvolume.Volume) { c.FSType = volume.Raw }), false},
		"brought back":                {claim(func(c *persistentvolume.Volume) { c.FS = "1b3c" }), false},
		"declared":                    {claim(func(c *persistentvolume.Volume) { c.Declared = true }), false},
		"its object is made anew":     {claim(func(c *persistentvolume.Volume) { c.Placeholder = true }), false},
		"a replica":                   {claim(func(c *persistentvolume.Volume) { c.Kind = volume.Dataset }), false},
		"a snapshot":                  {claim(func(c *persistentvolume.Volume) { c.Kind = volume.Snapshot }), false},

		"ready already":            {scene(func(s *evictiontest.Scene) { s.Volume("data", volume.Ready, 10) }), false},
		"half made":                {scene(func(s *evictiontest.Scene) { s.Volume("data", volume.Creating, 10) }), false},
		"given up":                 {scene(func(s *evictiontest.Scene) { s.Volume("data", volume.Unreferenced, 10) }), false},
		"devices are missing":      {scene(func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }), false},
		"its group is exported":    {scene(func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Exported = true }), false},
		"perhaps meant by another": {scene(func(s *evictiontest.Scene) { s.View.Unreadable = []string{"data"} }), false},
		"no room":                  {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 90) }), false},
		"just room":                {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 89) }), true},
		"others need not go":       {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 69); s.Volume("old", volume.Unreferenced, 20) }), true},
		"others have to go first":  {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 70); s.Volume("old", volume.Unreferenced, 20) }), false},
		"another waits for room":   {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 60); s.PersistentVolume("other", 30) }), false},
		"another has room as well": {scene(func(s *evictiontest.Scene) { s.ForeignVolumes(1, 59); s.PersistentVolume("other", 30) }), true},

		"thin":                             {thin(20), true},
		"thin, in a pool that is too full": {thin(9), false},
		"thin, and the pool takes no more": {func(s *evictiontest.Scene, c *persistentvolume.Volume) {
			thin(20)(s, c)
			s.PoolNamed("flexlvm/thin").Thin.Unfit = "it is full"
		}, false},
	} {
		for _, seen := range []string{"", ", seen"} {
			t.Run(name+seen, func(t *testing.T) {
				s := evictiontest.New()
				s.PersistentVolume("data", 10, evictiontest.Phase(corev1.VolumePending))
				last := len(s.View.PersistentVolumes) - 1
				c := s.View.PersistentVolumes[last]
				s.View.PersistentVolumes = s.View.PersistentVolumes[:last]
				tt.change(s, &c)
				if seen != "" {
					s.View.PersistentVolumes = append(s.View.PersistentVolumes, c)
				}
				require.Equal(t, tt.may, eviction.MayCreateAhead(s.View, s.Plan(), &c))
			})
		}
	}
}
