package eviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// onDevices returns a scene with a pool on n devices of 50 GiB each.
func onDevices(n int) *evictiontest.Scene {
	s := &evictiontest.Scene{View: eviction.View{Now: evictiontest.Now, Cluster: evictiontest.Cluster}, Policy: eviction.DefaultPolicy()}
	s.Policy.HighPercent = 100
	s.Pool("flexlvm", 50*n)
	for i := range n {
		g := s.PoolNamed("flexlvm")
		g.Devices, g.DeviceFree = append(g.Devices, deviceName(i)), append(g.DeviceFree, 50*volume.GiB)
	}
	return s
}

func deviceName(i int) string { return fmt.Sprintf("/dev/sd%c", 'a'+i) }

// lies places a volume on devices, with the given GiB on each.
func lies(s *evictiontest.Scene, on ...int) func(*inventory.Volume) {
	return func(v *inventory.Volume) {
		v.ByDevice, v.Allocated = map[string]volume.Bytes{}, 0
		for i, held := range on {
			if bytes := volume.Bytes(held) * volume.GiB; held > 0 {
				v.ByDevice[deviceName(i)] = bytes
				v.Allocated += bytes
				s.PoolNamed("flexlvm").DeviceFree[i] -= bytes
			}
		}
	}
}

// wide gives a claim a layout that takes share GiB of each of its devices.
func wide(layout volume.Layout, share int) func(*persistentvolume.Volume) {
	return func(c *persistentvolume.Volume) {
		c.Shape = volume.Spec{Layout: layout}.Shape()
		bytes := volume.Bytes(share) * volume.GiB
		c.Size = volume.Largest(slices.Repeat([]volume.Bytes{bytes}, c.Shape.Devices()), volume.Spec{Layout: layout}, volume.DefaultExtent)
		c.Charged = c.Shape.Takes(volume.XFSDeviceSize(c.Size, 0), volume.DefaultExtent)
	}
}

func TestPlanMakesRoomOnTheDevicesThatNeedIt(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  []string
		short volume.Bytes
	}{
		"both halves": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 0, wide(volume.Raid1, 30))
		}, []string{"Promised old-a", "Promised new-b"}, 0},
		"free altogether, and not where it is needed": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 0, wide(volume.Raid1, 15))
		}, []string{"Promised new-b"}, 0},
		"striped": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 0, wide(volume.Striped, 15))
		}, []string{"Promised new-b"}, 0},
		"fits as it is": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 0, wide(volume.Raid1, 5))
		}, nil, 0},
		"more than a device has": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 0, wide(volume.Raid1, 45))
		}, nil, 10 * volume.GiB},
		"where it lies is not known": {func(s *evictiontest.Scene) {
			for i := range s.View.Volumes {
				s.View.Volumes[i].ByDevice = nil
			}
			s.PersistentVolume("a", 0, wide(volume.Raid1, 15))
		}, nil, 10 * volume.GiB},
		"copies grow where they lie": {func(s *evictiontest.Scene) {
			s.Volume("c", volume.Ready, 0, lies(s, 5, 5), func(v *inventory.Volume) {
				v.Shape = volume.Spec{Layout: volume.Raid1}.Shape()
				v.Size = volume.GiB
			})
			s.PersistentVolume("c", 0, wide(volume.Raid1, 15))
		}, []string{"Promised new-b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := onDevices(2) // the volumes below leave 20 and 5 GiB free
			s.Volume("stays", volume.Ready, 0, lies(s, 10, 10))
			s.PersistentVolume("stays", 20)
			s.Volume("old-a", unreferenced, 0, lies(s, 20, 0), evictiontest.LastUsed(9))
			s.Volume("new-b", unreferenced, 0, lies(s, 0, 35), evictiontest.LastUsed(8))
			tt.scene(s)
			r := s.Plan()
			require.ElementsMatch(t, tt.want, evictiontest.Evicted(r))
			pool := r.Pools[0]
			require.InDelta(t, float64(tt.short), float64(pool.Shortfall), float64(volume.GiB), pool.ShortfallMessage)
			require.Equal(t, tt.short > 0 || tt.want != nil, pool.Pressure, pool.PressureMessage)
			for _, e := range r.Evictions {
				t.Log(e.Message)
			}
			t.Log(pool.PressureMessage, "|", pool.ShortfallMessage)
			require.Len(t, pool.Waiting, min(1, int(tt.short)))
		})
	}
}

// TestPlanByDevices compares plans of random pools on several devices with a brute-force search.
func TestPlanByDevices(t *testing.T) {
	var evicted, served, spared int
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := randomDevices(r)
		got := s.Plan()
		after := freeAfter(s, got, "")
		all := freeAfter(s, got, "all")
		wants := s.View.PersistentVolumes
		if fits(all, wants) {
			served++
			require.True(t, fits(after, wants), "seed %d: all could be served", seed)
			require.Zero(t, got.Pools[0].Shortfall, "seed %d", seed)
		}
		for _, e := range got.Evictions {
			evicted++
			require.Equal(t, eviction.ReasonPromised, e.Reason)
			if fits(all, wants) {
				require.False(t, fits(freeAfter(s, got, e.Volume.Name), wants), "seed %d: %s goes for nothing", seed, e.Volume.Name)
			}
		}
		if !fits(all, wants) && len(wants) == 1 {
			spared++
			require.Empty(t, got.Evictions, "seed %d: data is given up for nothing", seed)
			require.Positive(t, got.Pools[0].Shortfall, "seed %d", seed)
		}
	}
	t.Logf("%d plans served all, %d volumes evicted, %d plans that cannot help", served, evicted, spared)
	require.Greater(t, min(served, evicted, spared), 200, "the views are too tame")
}

// randomDevices returns a pool of two devices with up to three wide claims, or of three devices with one, and
// sometimes a linear claim.
func randomDevices(r *rand.Rand) *evictiontest.Scene {
	n := 2 + r.IntN(2)
	s := onDevices(n)
	for i := range 2 + r.IntN(8) {
		on := make([]int, n)
		left := s.PoolNamed("flexlvm").DeviceFree
		for d := range on {
			if one(r, 2) {
				on[d] = r.IntN(min(25, int(left[d]/volume.GiB)) + 1)
			}
		}
		state := pick(r, volume.Retained, volume.Doomed, unreferenced, unreferenced, unreferenced)
		s.Volume(fmt.Sprintf("v%d", i), state, 0, lies(s, on...), evictiontest.LastUsed(float64(r.IntN(20))))
	}
	wides := 1
	if n == 2 {
		wides += r.IntN(3)
	}
	for i := range wides {
		s.PersistentVolume(fmt.Sprintf("w%d", i), 0, wide(pick(r, volume.Raid1, volume.Striped), 1+r.IntN(60/wides)))
	}
	if one(r, 3) {
		s.PersistentVolume("linear", 1+r.IntN(30))
	}
	return s
}

// freeAfter returns what is free on each device after a plan, not counting the eviction of volume but. If but is
// "all", all evictable volumes count as evicted.
func freeAfter(s *evictiontest.Scene, got eviction.Result, but volume.Name) []volume.Bytes {
	free := slices.Clone(s.PoolNamed("flexlvm").DeviceFree)
	for _, v := range s.View.Volumes {
		goes := v.State == volume.Doomed || but == "all" && v.State == unreferenced ||
			v.Name != but && slices.ContainsFunc(got.Evictions, func(e eviction.Eviction) bool { return e.Volume.UUID == v.UUID })
		for i := range free {
			if goes {
				free[i] += v.ByDevice[deviceName(i)]
			}
		}
	}
	return free
}

// fits tries all placements of the claims.
func fits(free []volume.Bytes, wants []persistentvolume.Volume) bool {
	if len(wants) == 0 {
		return true
	}
	c, rest := wants[0], wants[1:]
	if c.Shape.Devices() == 1 { // fits wherever there is room, so it is placed last
		if len(rest) > 0 && rest[0].Shape.Devices() > 1 {
			return fits(free, append(slices.Clone(rest), c))
		}
		var sum volume.Bytes
		for _, f := range free {
			sum += f
		}
		return c.Charged <= sum
	}
	share := c.Shape.Share(volume.XFSDeviceSize(c.Size, 0), volume.DefaultExtent)
	for i := range free {
		for j := range i {
			left := slices.Clone(free)
			left[i] -= share
			left[j] -= share
			if left[i] >= 0 && left[j] >= 0 && fits(left, rest) {
				return true
			}
		}
	}
	return false
}
