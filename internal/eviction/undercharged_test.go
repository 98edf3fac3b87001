package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A growth that was carried out, but withdrawn from the PersistentVolume, is charged: in a volume group by what LVM
// shows, in a thin pool by what may now be written. That must not be promised again.
func TestUndercharged(t *testing.T) {
	grown := func(v *inventory.Volume) { v.Allocated += 60 * volume.GiB }
	for name, tt := range map[string]struct {
		scene func(thinScene)
		want  volume.Bytes // in addition to the charge
	}{
		"as it should be": {scene: func(s thinScene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Ready, 10) }},
		"not made yet":    {scene: func(s thinScene) { s.PersistentVolume("a", 10) }},
		"extended":        {scene: func(s thinScene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Ready, 10, grown) }, want: 60 * volume.GiB},
		"converted": {scene: func(s thinScene) {
			s.PersistentVolume("a", 10)
			s.Volume("a", volume.Ready, 10, func(v *inventory.Volume) {
				v.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				v.Allocated = v.Takes(10*volume.GiB, volume.DefaultExtent)
			})
		}},
		"never handed out": {scene: func(s thinScene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Creating, 10, grown) }},
		"another's": {scene: func(s thinScene) {
			s.PersistentVolume("a", 10)
			s.Volume("a", volume.Ready, 10, grown, func(v *inventory.Volume) { v.Cluster = "another" })
		}},
		"being deleted": {scene: func(s thinScene) {
			s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.Deleting = true })
			s.Volume("a", volume.Ready, 10, grown)
		}},
		"promised to grow": {scene: func(s thinScene) {
			s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.Growing = 100 * volume.GiB })
			s.Volume("a", volume.Ready, 10, grown)
		}},
		"thin, and written": {scene: func(s thinScene) {
			s.thinClaim("a", 1)
			s.thin("a", volume.Ready, 10, func(v *inventory.Volume) { v.Size = 0 })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			tt.scene(s)
			var more volume.Bytes
			for _, u := range eviction.Undercharged(s.View) {
				require.Equal(t, "a", u.PV)
				more += u.Charged - s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1].Charged
			}
			require.Equal(t, tt.want, more)
		})
	}
}

// After the charge nothing is left to add, and Allocatable is less by what the volume may still write.
func TestUnderchargedOnce(t *testing.T) {
	s := newThinScene()
	s.thinClaim("a", 10)
	s.thin("a", volume.Ready, 10, func(v *inventory.Volume) { v.Size = 50 * volume.GiB })
	c := &s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1]
	before := s.result(t).Allocatable - c.Charge().In(volume.DefaultExtent)
	all := eviction.Undercharged(s.View)
	require.Len(t, all, 1)
	c.Charged = all[0].Charged
	require.Empty(t, eviction.Undercharged(s.View))
	require.Greater(t, before-(s.result(t).Allocatable-c.Charge().In(volume.DefaultExtent)), 39*volume.GiB)
}
