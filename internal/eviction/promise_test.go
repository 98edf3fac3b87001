package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// What the claims still need of the pool.
func TestPlanPromised(t *testing.T) {
	size := func(b volume.Bytes) func(*persistentvolume.Volume) {
		return func(c *persistentvolume.Volume) { c.Size = b }
	}
	// exact gives a volume the device that the driver creates for its size.
	exact := func(b volume.Bytes) func(*inventory.Volume) {
		return func(v *inventory.Volume) { v.Size, v.Allocated = b, volume.XFSDeviceSize(b, 0) }
	}
	raid1 := volume.Spec{Size: 10 * volume.GiB, Layout: volume.Raid1}
	growth := volume.XFSDeviceSize(20*volume.GiB, 0) - volume.XFSDeviceSize(10*volume.GiB, 0)
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  volume.Bytes
	}{
		"nothing":              {func(*evictiontest.Scene) {}, 0},
		"one that is not made": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10) }, 10 * volume.GiB},
		"two":                  {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.PersistentVolume("b", 5) }, 15 * volume.GiB},
		"pending":              {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumePending)) }, 10 * volume.GiB},
		"available":            {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeAvailable)) }, 10 * volume.GiB},
		"bound, being deleted": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.Deleting) }, 10 * volume.GiB},
		"of no cluster":        {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.NoCluster) }, 10 * volume.GiB},
		"given up":             {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased)) }, 0},
		"released, kept": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Retain)
		}, 0},
		"failed": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeFailed)) }, 0},
		"deleted, not bound": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeAvailable), evictiontest.Deleting)
		}, 0},
		"of another cluster":  {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.OtherCluster) }, 0},
		"of a group replaced": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10, evictiontest.OtherGroup) }, 0},
		"of this very group": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.GroupUUID = evictiontest.GroupUUID })
		}, 10 * volume.GiB},
		"of a group not there": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.Group = "away" })
		}, 0},
		"one of the name doomed": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("doomed_a", volume.Doomed, 10) }, 10 * volume.GiB},
		"being made":             {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Creating, 10) }, 0},
		"made":                   {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Ready, 10) }, 0},
		"twice promised": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10)
			s.PersistentVolume("b", 12, func(c *persistentvolume.Volume) { c.Volume = "a" })
		}, 12 * volume.GiB},
		"growing": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB))
		}, growth},
		"raid1, in larger extents": {func(s *evictiontest.Scene) {
			s.View.Pools[0].Extent = 64 * volume.MiB
			s.PersistentVolume("a", 10, size(10*volume.GiB), func(c *persistentvolume.Volume) {
				c.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				c.Charged = raid1.Charge()
			})
		}, raid1.ChargeIn(64 * volume.MiB)},
		"raid1, growing": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) {
				v.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
				v.Allocated = raid1.Charge()
			})
		}, 2 * growth},
		"growing, its device has grown": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) { v.Allocated += growth })
		}, 0},
		"growing, half way": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) { v.Allocated += volume.GiB })
		}, growth - volume.GiB},
		"asked for less again": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(10*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(20*volume.GiB))
		}, 0},
		"as large as asked, on a smaller device than today's": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(10*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) { v.Allocated -= volume.GiB })
		}, 0},
		"growing, with inodes": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB), func(c *persistentvolume.Volume) { c.Inodes = 100 << 20 })
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB))
		}, volume.XFSDeviceSize(20*volume.GiB, 100<<20) - volume.XFSDeviceSize(10*volume.GiB, 0)},
		"growing, unreferenced": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", unreferenced, 0, exact(10*volume.GiB))
		}, 0},
		"growing, another cluster's": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) { v.Cluster = "another" })
		}, 0},
		"large extents": {func(s *evictiontest.Scene) {
			s.PoolNamed("flexlvm").Extent = 256 * volume.MiB
			s.PersistentVolume("a", 1, func(c *persistentvolume.Volume) { c.Charged = volume.GiB + volume.MiB })
		}, volume.GiB + 256*volume.MiB},
		"growing, large extents": {func(s *evictiontest.Scene) {
			s.PoolNamed("flexlvm").Extent = volume.GiB
			s.PersistentVolume("a", 10, size(20*volume.GiB))
			s.Volume("a", volume.Ready, 11, func(v *inventory.Volume) { v.Size = 10 * volume.GiB })
		}, 10 * volume.GiB},
		"a snapshot whose volume is gone": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.Kind, c.Taken = volume.Snapshot, true })
		}, 0},
		"a snapshot that was taken": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, size(100*volume.GiB), func(c *persistentvolume.Volume) { c.Kind, c.Taken = volume.Snapshot, true })
			s.Volume("a", volume.Ready, 0, exact(10*volume.GiB), func(v *inventory.Volume) { v.Kind = volume.Snapshot })
		}, 0},
		"no extent known": {func(s *evictiontest.Scene) {
			s.PoolNamed("flexlvm").Extent = 0
			s.PersistentVolume("a", 1, func(c *persistentvolume.Volume) { c.Charged = volume.GiB + 1 })
		}, volume.GiB + 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			tt.scene(s)
			require.Equal(t, tt.want, s.Plan().Pools[0].Promised)
		})
	}
}

// A pool of 100 GiB with 1 GiB settled, 70 that stay, and candidates of 4 and 5 GiB: 20 GiB are free.
func TestPlanForPromises(t *testing.T) {
	for name, tt := range map[string]struct {
		scene     func(*evictiontest.Scene)
		want      []string
		shortfall volume.Bytes
	}{
		"fits as it is": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 20) }, nil, 0},
		"a little":      {func(s *evictiontest.Scene) { s.PersistentVolume("a", 24) }, []string{"Promised v4"}, 0},
		"all":           {func(s *evictiontest.Scene) { s.PersistentVolume("a", 29) }, []string{"Promised v4", "Promised v5"}, 0},
		"cannot be met": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 30) }, nil, volume.GiB},
		"one of two fits as it is, the other never": {
			func(s *evictiontest.Scene) { s.PersistentVolume("small", 10); s.PersistentVolume("large", 50) }, nil, 31 * volume.GiB,
		},
		"one of two can be helped": {
			func(s *evictiontest.Scene) { s.PersistentVolume("small", 22); s.PersistentVolume("large", 50) }, []string{"Promised v4"}, 43 * volume.GiB,
		},
		"two of three can be helped": {
			func(s *evictiontest.Scene) {
				s.PersistentVolume("c", 50)
				s.PersistentVolume("a", 12)
				s.PersistentVolume("b", 13)
			},
			[]string{"Promised v4", "Promised v5"}, 46 * volume.GiB,
		},
		"what is about to be free is enough": {
			func(s *evictiontest.Scene) { s.Volume("doomed_x", volume.Doomed, 6); s.PersistentVolume("a", 20) }, nil, 0,
		},
		"what is about to be free counts": {
			func(s *evictiontest.Scene) { s.Volume("doomed_x", volume.Doomed, 6); s.PersistentVolume("a", 23) }, []string{"Promised v4"}, 0,
		},
		"what cannot be finished does not count": {
			func(s *evictiontest.Scene) {
				s.Volume("doomed_x", volume.Doomed, 6, evictiontest.WithProblem)
				s.PersistentVolume("a", 18)
			}, []string{"Promised v4"}, 0,
		},
		"what cannot be finished is missed": {
			func(s *evictiontest.Scene) {
				s.Volume("doomed_x", volume.Doomed, 6, evictiontest.WithProblem)
				s.PersistentVolume("a", 30)
			}, nil, 7 * volume.GiB,
		},
		"what goes anyway is enough": {
			func(s *evictiontest.Scene) {
				s.Volume("now", unreferenced, 6, evictiontest.Immediate)
				s.PersistentVolume("a", 20)
			}, []string{"Immediate now"}, 0,
		},
		"young ones do not help": {
			func(s *evictiontest.Scene) {
				s.Volume("new", unreferenced, 10, evictiontest.ReleasedAgo(0))
				s.PersistentVolume("a", 20)
			}, nil, volume.GiB,
		},
		"growth": {
			func(s *evictiontest.Scene) {
				s.Volume("a", volume.Ready, 10)
				s.PersistentVolume("a", 10, func(c *persistentvolume.Volume) { c.Size = 20 * volume.GiB })
			},
			[]string{"Promised v4"}, 0,
		},
		"half a group": {
			func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1; s.PersistentVolume("a", 24) }, nil, 4 * volume.GiB,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Policy.HighPercent = 100
			s.ForeignVolumes(1, 70)
			s.Volume("v4", unreferenced, 4, evictiontest.LastUsed(9))
			s.Volume("v5", unreferenced, 5, evictiontest.LastUsed(8))
			tt.scene(s)
			r := s.Plan()
			require.ElementsMatch(t, tt.want, evictiontest.Evicted(r))
			require.Equal(t, tt.shortfall, r.Pools[0].Shortfall)
			require.Equal(t, tt.shortfall > 0, r.Pools[0].ShortfallMessage != "")
			require.Equal(t, r.Pools[0].Pressure, r.Pools[0].Promised > r.Pools[0].Pool.Free)
			require.Equal(t, r.Pools[0].Pressure, r.Pools[0].PressureMessage != "")
		})
	}
}

// The messages must make sense to an operator at three in the morning.
func TestPlanMessages(t *testing.T) {
	s := evictiontest.New()
	s.Policy.MaxAge = 72 * 3600e9
	s.Volume("pvc-old", unreferenced, 2, evictiontest.ReleasedAgo(80*3600e9), evictiontest.LastUsed(100))
	s.Volume("pvc-now", unreferenced, 1, evictiontest.Immediate)
	s.Volume("pvc-1", unreferenced, 4, evictiontest.LastUsed(30))
	s.Volume("pvc-2", unreferenced, 1, evictiontest.LastUsed(20))
	s.Volume("pvc-3", unreferenced, 1, evictiontest.LastUsed(10))
	s.Volume("pvc-young", unreferenced, 3, evictiontest.ReleasedAgo(60e9))
	s.Volume("pvc-open", unreferenced, 3, func(v *inventory.Volume) { v.Open = true })
	s.Volume("doomed_x", volume.Doomed, 1)
	s.ForeignVolumes(1, 79) // 4 GiB are free
	s.PersistentVolume("pvc-8", 5)
	s.PersistentVolume("pvc-9", 6)
	s.PersistentVolume("pvc-10", 100)
	r := s.Plan()
	var messages []string
	for _, e := range r.Evictions {
		messages = append(messages, e.Message)
	}
	promised := "3 volumes promised on this node (pvc-8 for claim db/data-pvc-8 and 2 more) need 111 GiB"
	require.Equal(t, []string{
		"its class says reclaim: immediate; evicting it frees 1 GiB: volume flexlvm/pvc-now of namespace db was given up 4h ago and last used 5h ago",
		"nobody has wanted it for longer than 3d; evicting it frees 2 GiB: volume flexlvm/pvc-old of namespace db was given up 3d8h ago and last used 4d4h ago",
		promised + ", of which 2 with 11 GiB can be served, and pool flexlvm has 4 GiB free and 1 GiB about to be free; evicting it frees 4 GiB: volume flexlvm/pvc-1 of namespace db was given up 4h ago and last used 30h ago",
	}, messages)
	pool := r.Pools[0]
	require.Equal(t, "pool flexlvm is 96% full (96 GiB of 100 GiB), the high threshold is 85%; "+promised+", and pool flexlvm has 4 GiB free and 1 GiB about to be free", pool.PressureMessage)
	require.Equal(t, 97*volume.GiB, pool.Shortfall)
	require.Equal(t, promised+", and pool flexlvm can give 14 GiB: 97 GiB is missing; "+
		"3 GiB in 1 unreferenced volume may be evicted once unreferenced for 2m; 3 GiB in 1 unreferenced volume cannot be evicted while in use; "+
		"extend volume group flexlvm (`vgextend --metadatasize 16m flexlvm DEVICE`), or delete claims that nobody needs", pool.ShortfallMessage)
}
