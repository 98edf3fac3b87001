package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// onClosed places a volume on a device that LVM may not allocate from.
func onClosed(gib int) func(*inventory.Volume) {
	return func(v *inventory.Volume) {
		v.Allocated = volume.Bytes(gib) * volume.GiB
		v.ByDevice = map[string]volume.Bytes{"/dev/closed": v.Allocated}
	}
}

// withClosedDevice returns a pool of 100 GiB on two devices. On the open one, 20 GiB are in use, 25 GiB are evictable
// and 5 GiB are free; on the closed one, 40 GiB are evictable, and were used less recently, and 10 GiB are free.
func withClosedDevice() *evictiontest.Scene {
	s := onDevices(1)
	g := s.PoolNamed("flexlvm")
	g.Size, g.Free = g.Size+50*volume.GiB, g.Free+50*volume.GiB
	s.PersistentVolume("stays", 20)
	s.Volume("stays", volume.Ready, 20, lies(s, 20))
	s.Volume("open", unreferenced, 25, lies(s, 25), evictiontest.LastUsed(8))
	s.Volume("closed", unreferenced, 40, onClosed(40), evictiontest.LastUsed(9))
	g.Free = 15 * volume.GiB
	return s
}

// The room of devices that LVM may not allocate from serves no promise, and no volume on them is evicted for one.
func TestPlanWithAClosedDevice(t *testing.T) {
	for name, tt := range map[string]struct {
		scene   func(*evictiontest.Scene)
		evicted []string
		waiting int
	}{
		"nothing promised":       {func(*evictiontest.Scene) {}, []string{}, 0},
		"less than LVM's free":   {func(s *evictiontest.Scene) { s.PersistentVolume("wanted", 12) }, []string{"Promised open"}, 0},
		"more than LVM's free":   {func(s *evictiontest.Scene) { s.PersistentVolume("wanted", 28) }, []string{"Promised open"}, 0},
		"more than can be given": {func(s *evictiontest.Scene) { s.PersistentVolume("wanted", 35) }, []string{}, 1},
		"headroom": {func(s *evictiontest.Scene) {
			require.NoError(t, s.Policy.Headroom.Set("12Gi"))
		}, []string{"Headroom open"}, 0},
		"a removal on the closed device": {func(s *evictiontest.Scene) {
			s.Volume("doomed_a", volume.Doomed, 10, onClosed(10))
			s.PersistentVolume("wanted", 12)
		}, []string{"Promised open"}, 0},
		"a removal on the open device": {func(s *evictiontest.Scene) {
			s.Volume("doomed_a", volume.Doomed, 5, lies(s, 5))
			s.PersistentVolume("wanted", 5)
		}, []string{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := withClosedDevice()
			tt.scene(s)
			r := s.Plan()
			pool := r.Pools[0]
			require.Equal(t, tt.evicted, evictiontest.Evicted(r))
			require.Len(t, pool.Waiting, tt.waiting)
			require.Equal(t, tt.waiting > 0, pool.Shortfall > 0, pool.ShortfallMessage)
			require.Equal(t, "50 GiB", pool.Allocatable.String(), "the open device")
			require.Equal(t, "25 GiB", pool.Reclaimable.String())
		})
	}
}

// If LVM may allocate from none of the devices, their room is known to be none, not unknown.
func TestPlanWithAllDevicesClosed(t *testing.T) {
	s := withClosedDevice()
	g := s.PoolNamed("flexlvm")
	g.Devices, g.DeviceFree = nil, []volume.Bytes{}
	s.PersistentVolume("linear", 5)
	s.PersistentVolume("a", 0, wide(volume.Raid1, 1))
	r := s.Plan()
	require.Empty(t, r.Evictions)
	require.Len(t, r.Pools[0].Waiting, 2)
}

// A replica on a closed device is not evicted for a claim, and one on an open device is.
func TestPlanReplicasOnAClosedDevice(t *testing.T) {
	for name, want := range map[string]int{"closed": 0, "open": 1} {
		s := withClosedDevice()
		s.View.Volumes = s.View.Volumes[:1]
		place := onClosed(25)
		if name == "open" {
			place = func(v *inventory.Volume) { v.ByDevice = map[string]volume.Bytes{deviceName(0): v.Allocated} }
		}
		s.Replica("replica", 25, func(v *inventory.Volume, _ *persistentvolume.Volume) { place(v) })
		s.PersistentVolume("wanted", 12)
		require.Len(t, s.Plan().ReplicaEvictions, want, name)
	}
}

// A volume is created ahead of its turn only if LVM can allocate it.
func TestMayCreateAheadWithAClosedDevice(t *testing.T) {
	for gib, want := range map[int]bool{4: true, 12: false} {
		s := withClosedDevice()
		s.PersistentVolume("wanted", gib)
		c := &s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1]
		require.Equal(t, want, eviction.MayCreateAhead(s.View, s.Plan(), c), gib)
	}
}

// An orphan on a device that LVM may not allocate from does not use up the budget of orphans.
func TestPlanOrphansOnAClosedDevice(t *testing.T) {
	s := withClosedDevice()
	s.Policy.EvictOrphans, s.Policy.OrphanShare = true, 1 // one volume
	s.Volume("older", volume.Ready, 5, onClosed(5), evictiontest.LastUsed(400))
	s.Volume("newer", volume.Ready, 5, lies(s, 5), evictiontest.LastUsed(300))
	s.PoolNamed("flexlvm").Free = 5 * volume.GiB
	s.PersistentVolume("wanted", 28)
	require.Equal(t, []string{"Promised open", "Orphan newer"}, evictiontest.Evicted(s.Plan()))
}
