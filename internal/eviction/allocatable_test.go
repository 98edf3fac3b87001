package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Charged is the room of a pool that PersistentVolumes hold or are promised. The rest of Allocatable can still be
// promised.
func TestPlanCharged(t *testing.T) {
	s := evictiontest.New() // has a claim of 1 GiB
	s.PersistentVolume("made", 10)
	s.Volume("made", volume.Ready, 10)
	s.PersistentVolume("promised", 20)
	s.PersistentVolume("given up", 5, evictiontest.Phase(corev1.VolumeReleased))
	s.PersistentVolume("of a group replaced", 5, evictiontest.OtherGroup)
	s.Volume("old", unreferenced, 8)
	s.ForeignVolumes(1, 30)
	pool := s.Plan().Pools[0]
	require.Equal(t, 31*volume.GiB, pool.Charged)
	require.Equal(t, 39*volume.GiB, pool.Allocatable-pool.Charged)
}

// What PersistentVolumes may take of a pool of 100 GiB, 1 GiB of which a settled claim holds.
func TestPlanAllocatable(t *testing.T) {
	const all = 100 * volume.GiB
	extents := func(b volume.Bytes) func(*evictiontest.Scene) {
		return func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Extent = b }
	}
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  volume.Bytes
	}{
		"all of it":          {func(*evictiontest.Scene) {}, all},
		"promised, not made": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10) }, all},
		"promised and made":  {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Ready, 10) }, all},
		"being made":         {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Creating, 10) }, all},
		"others":             {func(s *evictiontest.Scene) { s.ForeignVolumes(2, 30) }, all - 30*volume.GiB},
		"another cluster's": {func(s *evictiontest.Scene) {
			s.Volume("a", volume.Ready, 10, func(v *inventory.Volume) { v.Cluster = "another" })
		}, all - 10*volume.GiB},
		"an orphan":                  {func(s *evictiontest.Scene) { s.Volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"retained":                   {func(s *evictiontest.Scene) { s.Volume("a", volume.Retained, 10) }, all - 10*volume.GiB},
		"retained, but wanted again": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Retained, 10) }, all},
		"released, kept": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Retain)
			s.Volume("a", volume.Ready, 10)
		}, all},
		"about to be free":             {func(s *evictiontest.Scene) { s.Volume("doomed_a", volume.Doomed, 10) }, all},
		"may be evicted":               {func(s *evictiontest.Scene) { s.Volume("a", unreferenced, 10) }, all},
		"may be evicted, but is young": {func(s *evictiontest.Scene) { s.Volume("a", unreferenced, 10, evictiontest.ReleasedAgo(time.Second)) }, all - 10*volume.GiB},
		"may be evicted, but is in use": {func(s *evictiontest.Scene) {
			s.Volume("a", unreferenced, 10, func(v *inventory.Volume) { v.Open = true })
		}, all - 10*volume.GiB},
		"may be evicted, but for another node's PersistentVolume": {func(s *evictiontest.Scene) {
			s.Volume("a", unreferenced, 10)
			s.View.KeptElsewhere = map[string]bool{s.View.Volumes[len(s.View.Volumes)-1].UUID: true}
		}, all - 10*volume.GiB},
		"may be evicted, but whether another node's wants it is not known": {func(s *evictiontest.Scene) {
			s.Volume("a", unreferenced, 10)
			s.View.KeptUnchecked = map[string]bool{"uuid-a": true}
		}, all - 10*volume.GiB},
		"goes at once": {func(s *evictiontest.Scene) {
			s.Volume("a", unreferenced, 10, evictiontest.ReleasedAgo(0), evictiontest.Immediate)
		}, all},
		"given up, its PV is still there": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased))
			s.Volume("a", volume.Ready, 10)
		}, all - 10*volume.GiB},
		"given up, kept as the API server has gone back": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased))
			s.Volume("a", volume.Ready, 10)
			s.View.WentBack = "resourceVersion 500 after 1000"
		}, all},
		"given up, on its way when the API server went back": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.Phase(corev1.VolumeReleased))
			s.Volume("a", unreferenced, 10, evictiontest.ReleasedAgo(time.Second))
			s.View.WentBack = "resourceVersion 500 after 1000"
		}, all - 10*volume.GiB},
		"its PV cannot be read": {func(s *evictiontest.Scene) { s.View.Unreadable = []string{"a"}; s.Volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"of a group replaced": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10, evictiontest.OtherGroup)
			s.Volume("a", volume.Ready, 10)
		}, all - 10*volume.GiB},
		"holds more than its charge": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 10); s.Volume("a", volume.Ready, 12) }, all - 2*volume.GiB},
		"is to grow":                 {func(s *evictiontest.Scene) { s.PersistentVolume("a", 12); s.Volume("a", volume.Ready, 10) }, all},
		"named by two": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10)
			s.PersistentVolume("b", 10, func(c *persistentvolume.Volume) { c.Volume = "a" })
			s.Volume("a", volume.Ready, 10)
		}, all},
		"large extents": {func(s *evictiontest.Scene) {
			s.PersistentVolume("a", 10)
			s.Volume("a", volume.Ready, 12)
			extents(3 * volume.GiB)(s)
		}, all},
		"blocked": {func(s *evictiontest.Scene) {
			s.View.PersistentVolumes = nil // the API server has come back empty
			s.Volume("a", unreferenced, 10)
		}, all - 11*volume.GiB},
		"one removal fails": {func(s *evictiontest.Scene) {
			s.Volume("doomed_x", volume.Doomed, 5, evictiontest.WithProblem)
			s.Volume("a", unreferenced, 10)
		}, all - 5*volume.GiB},
		"two removals fail, so no more are begun": {func(s *evictiontest.Scene) {
			s.Volume("doomed_x", volume.Doomed, 5, evictiontest.WithProblem)
			s.Volume("doomed_y", volume.Doomed, 5, evictiontest.WithProblem)
			s.Volume("a", unreferenced, 10)
			s.Replica("b", 20)
		}, all - 20*volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			tt.scene(s)
			require.Equal(t, tt.want.String(), s.Plan().Pools[0].Allocatable.String())
		})
	}
}

// LVM counts the free room of devices that it may not allocate from as free.
func TestPlanAllocatableOfClosedDevices(t *testing.T) {
	for name, tt := range map[string]struct {
		free []volume.Bytes // of the devices that LVM may allocate from
		want volume.Bytes
	}{
		"unknown":  {nil, 100 * volume.GiB},
		"all open": {[]volume.Bytes{50 * volume.GiB, 49 * volume.GiB}, 100 * volume.GiB},
		"one open": {[]volume.Bytes{49 * volume.GiB}, 50 * volume.GiB},
		"none":     {[]volume.Bytes{}, volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New() // has a volume of 1 GiB
			g := s.PoolNamed("flexlvm")
			g.DeviceFree = tt.free
			for i := range tt.free {
				g.Devices = append(g.Devices, deviceName(i))
			}
			p := s.Plan().Pools[0]
			require.Equal(t, tt.want.String(), p.Allocatable.String())
			require.Equal(t, 1, p.UsedPercent, "the rest is unused")
		})
	}
}

func TestPlanClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*inventory.Pool)
		want   string
	}{
		"open":              {func(*inventory.Pool) {}, ""},
		"a device is gone":  {func(p *inventory.Pool) { p.Missing = 1 }, "LVM cannot find 1 device of volume group flexlvm"},
		"exported":          {func(p *inventory.Pool) { p.Exported = true }, "volume group flexlvm is exported"},
		"metadata is full":  {func(p *inventory.Pool) { p.MetadataSize, p.MetadataFree = 100, 5 }, "90% full"},
		"metadata has room": {func(p *inventory.Pool) { p.MetadataSize, p.MetadataFree = 100, 6 }, ""},
		"metadata is empty": {func(p *inventory.Pool) { p.MetadataSize, p.MetadataFree = 100, 50 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			tt.change(s.PoolNamed("flexlvm"))
			closed := s.Plan().Pools[0].Closed
			require.Equal(t, tt.want == "", closed == "", closed)
			require.Contains(t, closed, tt.want)
		})
	}
}

// A volume that another node's PersistentVolume may keep is not on offer, but is planned for eviction when its room
// is needed: the API server is asked just before the removal.
func TestPlanKeptUnchecked(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  []string
	}{
		"nothing is needed": {func(*evictiontest.Scene) {}, []string{}},
		"promised":          {func(s *evictiontest.Scene) { s.PersistentVolume("wanted", 70) }, []string{"Promised a"}},
		"threshold":         {func(s *evictiontest.Scene) { s.ForeignVolumes(1, 50) }, []string{"HighThreshold a"}},
		"immediate":         {func(s *evictiontest.Scene) { evictiontest.Immediate(&s.View.Volumes[1]) }, []string{"Immediate a"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Volume("a", unreferenced, 30, evictiontest.LastUsed(100))
			s.Volume("b", unreferenced, 10)
			s.View.KeptUnchecked = map[string]bool{"uuid-a": true}
			tt.scene(s)
			r := s.Plan()
			require.Equal(t, 10*volume.GiB, r.Pools[0].Reclaimable)
			require.Equal(t, tt.want, evictiontest.Evicted(r))
			require.Zero(t, r.Pools[0].Shortfall, r.Pools[0].ShortfallMessage)
			s.View.KeptUnchecked = nil
			asked := s.Plan()
			require.Equal(t, 40*volume.GiB, asked.Pools[0].Reclaimable)
			require.Equal(t, tt.want, evictiontest.Evicted(asked))
		})
	}
}

// The claims that wait for room are those that the plan cannot serve with the room that it counts on.
func TestPlanWaiting(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  []string
	}{
		"free":                  {func(*evictiontest.Scene) {}, []string{"large"}},
		"unreferenced":          {func(s *evictiontest.Scene) { s.Volume("old", unreferenced, 40) }, []string{"large"}},
		"in use":                {func(s *evictiontest.Scene) { s.Volume("old", volume.Retained, 40) }, []string{"small", "large"}},
		"being removed":         {func(s *evictiontest.Scene) { s.Volume("doomed_old", volume.Doomed, 40) }, []string{"large"}},
		"could not be removed":  {func(s *evictiontest.Scene) { s.Volume("doomed_old", volume.Doomed, 40, evictiontest.WithProblem) }, []string{"small", "large"}},
		"a replica that may go": {func(s *evictiontest.Scene) { s.Replica("old", 40) }, []string{"large"}},
		"a replica that goes": {func(s *evictiontest.Scene) {
			s.Replica("old", 40, func(_ *inventory.Volume, c *persistentvolume.Volume) {
				c.Replica.Asked, c.Replica.Unlabelled, c.Replica.Evictable = evictiontest.Now, evictiontest.Now, evictiontest.Now
			})
		}, []string{"large"}},
		"nothing is evicted at all": {func(s *evictiontest.Scene) {
			for _, name := range []string{"a", "b", "c", "d", "e"} { // without PersistentVolumes
				s.Volume(name, volume.Ready, 0)
			}
			s.Volume("old", unreferenced, 40)
		}, []string{"small", "large"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("large", 120)
			s.PersistentVolume("small", 70)
			tt.scene(s)
			waiting := []string{}
			for _, c := range s.Plan().Pools[0].Waiting {
				waiting = append(waiting, c.PV)
			}
			require.Equal(t, tt.want, waiting)
		})
	}
}

// The room of volumes that are being removed is reported separately from free room, except where the removal has
// failed. No other volume is evicted for the same room, whatever the state of a volume that is being removed.
func TestPlanRemoving(t *testing.T) {
	s := evictiontest.New()
	s.Volume("doomed_a", volume.Doomed, 10)
	s.Volume("doomed_b", volume.Doomed, 20, func(v *inventory.Volume) { v.Problem = "removing it has failed" })
	s.Volume("a", unreferenced, 30, evictiontest.LastUsed(100))
	s.Volume("b", unreferenced, 30)
	s.PersistentVolume("wanted", 35)
	plan := s.Plan()
	require.Equal(t, 10*volume.GiB, plan.Pools[0].Removing)
	require.Equal(t, 60*volume.GiB, plan.Pools[0].Reclaimable)
	require.Len(t, plan.Evictions, 1)
	require.Equal(t, volume.Name("a"), plan.Evictions[0].Volume.Name)
	allocatable := plan.Pools[0].Allocatable

	s.View.Removing = map[string]bool{s.View.Volumes[len(s.View.Volumes)-2].ID(): true} // a
	plan = s.Plan()
	require.Equal(t, 40*volume.GiB, plan.Pools[0].Removing)
	require.Equal(t, 30*volume.GiB, plan.Pools[0].Reclaimable)
	require.Equal(t, allocatable, plan.Pools[0].Allocatable)
	require.Empty(t, plan.Evictions)
	require.Len(t, plan.Released, 2)
	require.Equal(t, eviction.KeptRemoving, plan.Released[0].Kept, "what is known of it is kept: its removal may fail")
	require.Empty(t, plan.Pools[0].Waiting)

	s.PersistentVolume("a", 30) // somebody wants it back
	require.Equal(t, allocatable, s.Plan().Pools[0].Allocatable, "its room is counted once")
}
