package gc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// What the claims still need of the pool.
func TestPlanPromised(t *testing.T) {
	size := func(b volume.Bytes) func(*gc.Claim) { return func(c *gc.Claim) { c.Size = b } }
	// A volume whose device is what its size takes, as the driver makes it.
	exact := func(b volume.Bytes) func(*node.Volume) {
		return func(v *node.Volume) { v.Size, v.Device = b, volume.DeviceSize(b, 0) }
	}
	raid1 := volume.Spec{Size: 10 * volume.GiB, Layout: volume.Raid1}
	growth := volume.DeviceSize(20*volume.GiB, 0) - volume.DeviceSize(10*volume.GiB, 0)
	for name, tt := range map[string]struct {
		scene func(*scene)
		want  volume.Bytes
	}{
		"nothing":                {func(*scene) {}, 0},
		"one that is not made":   {func(s *scene) { s.claim("a", 10) }, 10 * volume.GiB},
		"two":                    {func(s *scene) { s.claim("a", 10); s.claim("b", 5) }, 15 * volume.GiB},
		"pending":                {func(s *scene) { s.claim("a", 10, phase(corev1.VolumePending)) }, 10 * volume.GiB},
		"available":              {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeAvailable)) }, 10 * volume.GiB},
		"bound, being deleted":   {func(s *scene) { s.claim("a", 10, deleting) }, 10 * volume.GiB},
		"of no cluster":          {func(s *scene) { s.claim("a", 10, noCluster) }, 10 * volume.GiB},
		"given up":               {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeReleased)) }, 0},
		"released, kept":         {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeReleased), retain) }, 0},
		"failed":                 {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeFailed)) }, 0},
		"deleted, not bound":     {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeAvailable), deleting) }, 0},
		"of another cluster":     {func(s *scene) { s.claim("a", 10, cluster2) }, 0},
		"of a group replaced":    {func(s *scene) { s.claim("a", 10, otherGroup) }, 0},
		"of this very group":     {func(s *scene) { s.claim("a", 10, func(c *gc.Claim) { c.GroupUUID = sceneUUID }) }, 10 * volume.GiB},
		"of a group not there":   {func(s *scene) { s.claim("a", 10, func(c *gc.Claim) { c.Group = "away" }) }, 0},
		"one of the name doomed": {func(s *scene) { s.claim("a", 10); s.volume("doomed_a", volume.Doomed, 10) }, 10 * volume.GiB},
		"being made":             {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Creating, 10) }, 0},
		"made":                   {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Ready, 10) }, 0},
		"twice promised":         {func(s *scene) { s.claim("a", 10); s.claim("b", 12, func(c *gc.Claim) { c.Volume = "a" }) }, 12 * volume.GiB},
		"growing": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB))
		}, growth},
		"raid1, in larger extents": {func(s *scene) {
			s.view.Pools[0].Extent = 64 * volume.MiB
			s.claim("a", 10, size(10*volume.GiB), func(c *gc.Claim) {
				c.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				c.Charged = raid1.Charge()
			})
		}, raid1.ChargeIn(64 * volume.MiB)},
		"raid1, growing": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *node.Volume) {
				v.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				v.Device = raid1.Charge()
			})
		}, 2 * growth},
		"growing, its device has grown": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *node.Volume) { v.Device += growth })
		}, 0},
		"growing, half way": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *node.Volume) { v.Device += volume.GiB })
		}, growth - volume.GiB},
		"asked for less again": {func(s *scene) {
			s.claim("a", 10, size(10*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(20*volume.GiB))
		}, 0},
		"as large as asked, on a smaller device than today's": {func(s *scene) {
			s.claim("a", 10, size(10*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *node.Volume) { v.Device -= volume.GiB })
		}, 0},
		"growing, with inodes": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB), func(c *gc.Claim) { c.Inodes = 100 << 20 })
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB))
		}, volume.DeviceSize(20*volume.GiB, 100<<20) - volume.DeviceSize(10*volume.GiB, 0)},
		"growing, unreferenced": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", unreferenced, 0, exact(10*volume.GiB))
		}, 0},
		"growing, another cluster's": {func(s *scene) {
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *node.Volume) { v.Cluster = "another" })
		}, 0},
		"large extents": {func(s *scene) {
			s.group("flexlvm").Extent = 256 * volume.MiB
			s.claim("a", 1, func(c *gc.Claim) { c.Charged = volume.GiB + volume.MiB })
		}, volume.GiB + 256*volume.MiB},
		"growing, large extents": {func(s *scene) {
			s.group("flexlvm").Extent = volume.GiB
			s.claim("a", 10, size(20*volume.GiB))
			s.volume("a", volume.Ready, 11, func(v *node.Volume) { v.Size = 10 * volume.GiB })
		}, 10 * volume.GiB},
		"no extent known": {func(s *scene) {
			s.group("flexlvm").Extent = 0
			s.claim("a", 1, func(c *gc.Claim) { c.Charged = volume.GiB + 1 })
		}, volume.GiB + 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			tt.scene(s)
			require.Equal(t, tt.want, s.plan().Pools[0].Promised)
		})
	}
}

// A pool of 100 GiB holds 1 settled, 70 that stay, and candidates of 4 and 5: 20
// are free.
func TestPlanForPromises(t *testing.T) {
	for name, tt := range map[string]struct {
		scene     func(*scene)
		want      []string
		shortfall volume.Bytes
	}{
		"fits as it is": {func(s *scene) { s.claim("a", 20) }, nil, 0},
		"a little":      {func(s *scene) { s.claim("a", 24) }, []string{"Promised v4"}, 0},
		"all":           {func(s *scene) { s.claim("a", 29) }, []string{"Promised v4", "Promised v5"}, 0},
		"cannot be met": {func(s *scene) { s.claim("a", 30) }, nil, volume.GiB},
		"one of two fits as it is, the other never": {
			func(s *scene) { s.claim("small", 10); s.claim("large", 50) }, nil, 31 * volume.GiB,
		},
		"one of two can be helped": {
			func(s *scene) { s.claim("small", 22); s.claim("large", 50) }, []string{"Promised v4"}, 43 * volume.GiB,
		},
		"two of three can be helped": {
			func(s *scene) { s.claim("c", 50); s.claim("a", 12); s.claim("b", 13) },
			[]string{"Promised v4", "Promised v5"}, 46 * volume.GiB,
		},
		"what is coming free is enough": {
			func(s *scene) { s.volume("doomed_x", volume.Doomed, 6); s.claim("a", 20) }, nil, 0,
		},
		"what is coming free counts": {
			func(s *scene) { s.volume("doomed_x", volume.Doomed, 6); s.claim("a", 23) }, []string{"Promised v4"}, 0,
		},
		"what cannot be finished does not count": {
			func(s *scene) { s.volume("doomed_x", volume.Doomed, 6, odd); s.claim("a", 18) }, []string{"Promised v4"}, 0,
		},
		"what cannot be finished is missed": {
			func(s *scene) { s.volume("doomed_x", volume.Doomed, 6, odd); s.claim("a", 30) }, nil, 7 * volume.GiB,
		},
		"what goes anyway is enough": {
			func(s *scene) { s.volume("now", unreferenced, 6, immediate); s.claim("a", 20) }, []string{"Immediate now"}, 0,
		},
		"young ones do not help": {
			func(s *scene) { s.volume("new", unreferenced, 10, releasedAgo(0)); s.claim("a", 20) }, nil, volume.GiB,
		},
		"growth": {
			func(s *scene) {
				s.volume("a", volume.Ready, 10)
				s.claim("a", 10, func(c *gc.Claim) { c.Size = 20 * volume.GiB })
			},
			[]string{"Promised v4"}, 0,
		},
		"half a group": {
			func(s *scene) { s.group("flexlvm").Missing = 1; s.claim("a", 24) }, nil, 4 * volume.GiB,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.policy.HighPercent = 100
			s.others(1, 70)
			s.volume("v4", unreferenced, 4, lastUsed(9))
			s.volume("v5", unreferenced, 5, lastUsed(8))
			tt.scene(s)
			r := s.plan()
			require.ElementsMatch(t, tt.want, evicted(r))
			require.Equal(t, tt.shortfall, r.Pools[0].Shortfall)
			require.Equal(t, tt.shortfall > 0, r.Pools[0].ShortfallMessage != "")
			require.Equal(t, r.Pools[0].Pressure, r.Pools[0].Promised > r.Pools[0].Pool.Free)
			require.Equal(t, r.Pools[0].Pressure, r.Pools[0].PressureMessage != "")
		})
	}
}

// An operator must understand these at three in the morning.
func TestPlanMessages(t *testing.T) {
	s := newScene()
	s.policy.MaxAge = 72 * 3600e9
	s.volume("pvc-old", unreferenced, 2, releasedAgo(80*3600e9), lastUsed(100))
	s.volume("pvc-now", unreferenced, 1, immediate)
	s.volume("pvc-1", unreferenced, 4, lastUsed(30))
	s.volume("pvc-2", unreferenced, 1, lastUsed(20))
	s.volume("pvc-3", unreferenced, 1, lastUsed(10))
	s.volume("pvc-young", unreferenced, 3, releasedAgo(60e9))
	s.volume("pvc-open", unreferenced, 3, func(v *node.Volume) { v.Open = true })
	s.volume("doomed_x", volume.Doomed, 1)
	s.others(1, 79) // 4 GiB are free
	s.claim("pvc-8", 5)
	s.claim("pvc-9", 6)
	s.claim("pvc-10", 100)
	r := s.plan()
	var messages []string
	for _, e := range r.Evictions {
		messages = append(messages, e.Message)
	}
	promised := "3 volumes promised on this node (pvc-8 for claim db/data-pvc-8 and 2 more) need 111 GiB"
	require.Equal(t, []string{
		"its class says reclaim: immediate; this volume gives back 1 GiB: volume flexlvm/pvc-now of namespace db was given up 4h ago and last used 5h ago",
		"nobody has wanted it for longer than 3d; this volume gives back 2 GiB: volume flexlvm/pvc-old of namespace db was given up 3d8h ago and last used 4d4h ago",
		promised + ", of which 2 with 11 GiB can be served, and pool flexlvm has 4 GiB free and 1 GiB coming free; this volume gives back 4 GiB: volume flexlvm/pvc-1 of namespace db was given up 4h ago and last used 30h ago",
		"pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%; 8 GiB must go to reach the low threshold of 80%; this volume gives back 1 GiB: volume flexlvm/pvc-2 of namespace db was given up 4h ago and last used 20h ago",
		"pool flexlvm is 88% full (88 GiB of 100 GiB), the high threshold is 85%; 8 GiB must go to reach the low threshold of 80%; this volume gives back 1 GiB: volume flexlvm/pvc-3 of namespace db was given up 4h ago and last used 10h ago",
	}, messages)
	pool := r.Pools[0]
	require.Equal(t, "pool flexlvm is 96% full (96 GiB of 100 GiB), the high threshold is 85%; "+promised+", and pool flexlvm has 4 GiB free and 1 GiB coming free", pool.PressureMessage)
	require.Equal(t, 97*volume.GiB, pool.Shortfall)
	require.Equal(t, promised+", and pool flexlvm can give 14 GiB: 97 GiB is missing; "+
		"pool flexlvm is 86% full (86 GiB of 100 GiB), the high threshold is 85%, and nothing more may be evicted: 6 GiB too much for the low threshold of 80%; "+
		"3 GiB in 1 unreferenced volume may go once unreferenced for 2m; 3 GiB in 1 unreferenced volume cannot go while in use; "+
		"extend volume group flexlvm (vgextend), or delete claims that nobody needs", pool.ShortfallMessage)
}
