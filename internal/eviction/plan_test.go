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

const unreferenced = volume.Unreferenced

// Which volumes may be evicted at all. Each scene promises 99 GiB of the pool's 100, so that every candidate has to
// be evicted; "victim" of 20 GiB is the only one.
func TestPlanCandidates(t *testing.T) {
	type mine = func(*inventory.Volume)
	const stays, goes = false, true
	for name, tt := range map[string]struct {
		state  volume.State
		change mine
		scene  func(*evictiontest.Scene)
		goes   bool
	}{
		"unreferenced":          {state: unreferenced, goes: goes},
		"inactive":              {state: unreferenced, change: func(v *inventory.Volume) { v.Active = false }, goes: goes},
		"dataset":               {state: unreferenced, change: func(v *inventory.Volume) { v.Kind = volume.Dataset }, goes: goes},
		"ready":                 {state: volume.Ready, scene: func(s *evictiontest.Scene) { s.PersistentVolume("victim", 20) }},
		"ready, unexplained":    {state: volume.Ready},
		"creating, unexplained": {state: volume.Creating},
		"retained":              {state: volume.Retained},
		"nonsense":              {state: "", change: func(v *inventory.Volume) { v.Problem = "two states" }},
		"state unknown to all":  {state: ""},
		"with a problem":        {state: unreferenced, change: func(v *inventory.Volume) { v.Problem = "odd" }},
		"open":                  {state: unreferenced, change: func(v *inventory.Volume) { v.Open = true }},
		"mounted":               {state: unreferenced, change: func(v *inventory.Volume) { v.Mounts = []string{"/mnt"} }},
		"has snapshots":         {state: unreferenced, change: func(v *inventory.Volume) { v.HasSnapshots = true }},
		"of another cluster":    {state: unreferenced, change: func(v *inventory.Volume) { v.Cluster = "another" }},
		"of no cluster":         {state: unreferenced, change: func(v *inventory.Volume) { v.Cluster = "" }},
		"in half a group":       {state: unreferenced, scene: func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }},
		"in an exported group":  {state: unreferenced, scene: func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Exported = true }},
		"in one of two groups":  {state: unreferenced, scene: func(s *evictiontest.Scene) { s.Pool("flexlvm", 50) }},
		"in a group not seen":   {state: unreferenced, scene: func(s *evictiontest.Scene) { s.View.Volumes[1].Group = "away" }},
		"wanted":                {state: unreferenced, scene: func(s *evictiontest.Scene) { s.PersistentVolume("victim", 20) }},
		"wanted under another name": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("x", 20, func(c *persistentvolume.Volume) { c.Volume = "victim" })
		}},
		"of a PV that cannot be read": {state: unreferenced, scene: func(s *evictiontest.Scene) { s.View.Unreadable = []string{"victim"} }},
		"of a PV deleted but bound":   {state: unreferenced, scene: func(s *evictiontest.Scene) { s.PersistentVolume("victim", 20, evictiontest.Deleting) }},
		"of a PV released, kept": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 20, evictiontest.Retain, evictiontest.Phase(corev1.VolumeReleased))
		}},
		"of another cluster's PV": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 20, evictiontest.OtherCluster, evictiontest.Phase(corev1.VolumeReleased))
		}},
		"of a PV without cluster": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 20, evictiontest.NoCluster, evictiontest.Phase(corev1.VolumeReleased))
		}},
		"of a PV being released": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 20, evictiontest.Phase(corev1.VolumeReleased))
		}, goes: goes},
		"of a PV in another group": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.Pool("z", 1)
			s.PersistentVolume("victim", 0, func(c *persistentvolume.Volume) { c.Group = "z" })
		}, goes: goes},
		"of a PV released, kept, in a group renamed since": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 0, evictiontest.GroupWas("away"), evictiontest.Retain, evictiontest.Phase(corev1.VolumeReleased))
		}},
		"of a PV deleted, kept, in a group renamed since": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 0, evictiontest.GroupWas("away"), evictiontest.Retain, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Deleting)
		}},
		"wanted in a group renamed since": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 0, evictiontest.GroupWas("away"))
		}},
		"immediate, wanted in a group renamed since": {state: unreferenced, change: evictiontest.Immediate, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 0, evictiontest.GroupWas("away"))
		}},
		"of a PV being released in a group renamed since": {state: unreferenced, scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("victim", 0, evictiontest.GroupWas("away"), evictiontest.Phase(corev1.VolumeReleased))
		}, goes: goes},
		"of exactly the least age":      {state: unreferenced, change: evictiontest.ReleasedAgo(2 * time.Minute), goes: goes},
		"one second too young":          {state: unreferenced, change: evictiontest.ReleasedAgo(2*time.Minute - time.Second)},
		"given up in the future":        {state: unreferenced, change: evictiontest.ReleasedAgo(-time.Hour)},
		"given up nobody knows when":    {state: unreferenced, change: func(v *inventory.Volume) { v.Released = time.Time{} }},
		"young, immediate":              {state: unreferenced, change: func(v *inventory.Volume) { evictiontest.Immediate(v); v.Released = evictiontest.Now }, goes: goes},
		"open, immediate":               {state: unreferenced, change: func(v *inventory.Volume) { evictiontest.Immediate(v); v.Open = true }},
		"wanted, immediate":             {state: unreferenced, change: evictiontest.Immediate, scene: func(s *evictiontest.Scene) { s.PersistentVolume("victim", 20) }},
		"ready, immediate":              {state: volume.Ready, change: evictiontest.Immediate},
		"another cluster's, immediate":  {state: unreferenced, change: func(v *inventory.Volume) { evictiontest.Immediate(v); v.Cluster = "another" }},
		"in an exported group, at once": {state: unreferenced, change: evictiontest.Immediate, scene: func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Exported = true }},
		"in half a group, immediate":    {state: unreferenced, change: evictiontest.Immediate, scene: func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }},
		"unreadable's name, immediate":  {state: unreferenced, change: evictiontest.Immediate, scene: func(s *evictiontest.Scene) { s.View.Unreadable = []string{"victim"} }},
		"of no size":                    {state: unreferenced, change: func(v *inventory.Volume) { v.Allocated = 0 }},
		"doomed, still under its names": {state: volume.Doomed},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			change := tt.change
			if change == nil {
				change = func(*inventory.Volume) {}
			}
			s.Volume("victim", tt.state, 20, change)
			s.PersistentVolume("promised", 99)
			if tt.scene != nil {
				tt.scene(s)
			}
			r := s.Plan()
			require.Empty(t, r.Blocked)
			if tt.goes == stays {
				require.Empty(t, evictiontest.Evicted(r))
				require.Zero(t, r.Pools[0].Reclaimable)
				return
			}
			require.Equal(t, volume.Name("victim"), r.Evictions[0].Volume.Name)
			require.Equal(t, 20*volume.GiB, r.Pools[0].Reclaimable)
		})
	}
}

// Which volumes are evicted first, and how many.
func TestPlanOrder(t *testing.T) {
	s := evictiontest.New()
	s.Volume("c-newer", unreferenced, 10, evictiontest.LastUsed(2))
	s.Volume("b-older", unreferenced, 10, evictiontest.LastUsed(9))
	s.Volume("d-small", unreferenced, 5, evictiontest.LastUsed(9))
	s.Volume("a-older", unreferenced, 10, evictiontest.LastUsed(9))
	s.Volume("e-large", unreferenced, 20, evictiontest.LastUsed(9))
	// 44 GiB are free.
	for need, want := range map[int][]string{
		44: {},
		45: {"Promised e-large"},
		64: {"Promised e-large"},
		65: {"Promised e-large", "Promised a-older"},
		75: {"Promised e-large", "Promised a-older", "Promised b-older"},
		85: {"Promised e-large", "Promised a-older", "Promised b-older", "Promised d-small"},
		99: {"Promised e-large", "Promised a-older", "Promised b-older", "Promised d-small", "Promised c-newer"},
	} {
		again := *s
		again.PersistentVolume("promised", need)
		require.Equal(t, want, evictiontest.Evicted(again.Plan()), "%d GiB are promised", need)
	}
}

func TestPlanThreshold(t *testing.T) {
	for name, tt := range map[string]struct {
		others int // GiB, beside 1 GiB settled and candidates of 2, 3 and 4 GiB
		change func(*evictiontest.Scene)
		want   []string
	}{
		"under":        {74, nil, nil},
		"just at it":   {75, nil, []string{"HighThreshold v2", "HighThreshold v3"}},
		"over":         {77, nil, []string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"}},
		"never enough": {89, nil, []string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"}},
		"in use alone, and little given up": {89, func(s *evictiontest.Scene) {
			for i := range s.View.Volumes {
				s.View.Volumes[i].Open = s.View.Volumes[i].Size > 2*volume.GiB // v3 and v4
			}
			s.ForeignVolumes(1, -3) // 96 GiB are used, 94 of them permanently
		}, nil},
		"in use alone, and young": {86, func(s *evictiontest.Scene) {
			for i := range s.View.Volumes {
				s.View.Volumes[i].Released = evictiontest.Now
			}
		}, nil},
		"off":                   {89, func(s *evictiontest.Scene) { s.Policy.HighPercent = 100 }, nil},
		"off, full to the brim": {90, func(s *evictiontest.Scene) { s.Policy.HighPercent = 100 }, nil},
		"other figures":         {60, func(s *evictiontest.Scene) { s.Policy.HighPercent, s.Policy.LowPercent = 70, 68 }, []string{"HighThreshold v2"}},
		"doomed pending":        {73, func(s *evictiontest.Scene) { s.Volume("doomed_x", volume.Doomed, 2) }, nil},
		"doomed pending, still over": {
			76, func(s *evictiontest.Scene) { s.Volume("doomed_x", volume.Doomed, 4) },
			[]string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"},
		},
		"what goes anyway counts": {
			75, func(s *evictiontest.Scene) { s.Volume("now", unreferenced, 3, evictiontest.Immediate) },
			[]string{"Immediate now", "HighThreshold v2", "HighThreshold v3"},
		},
		"what goes anyway is enough": {
			74, func(s *evictiontest.Scene) { s.Volume("now", unreferenced, 3, evictiontest.Immediate) },
			[]string{"Immediate now"},
		},
		"what is promised does not count": {50, func(s *evictiontest.Scene) { s.PersistentVolume("promised", 40) }, nil},
		"a byte under":                    {75, func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Free++ }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Volume("v2", unreferenced, 2, evictiontest.LastUsed(9))
			s.Volume("v3", unreferenced, 3, evictiontest.LastUsed(8))
			s.Volume("v4", unreferenced, 4, evictiontest.LastUsed(7))
			s.ForeignVolumes(1, tt.others)
			if tt.change != nil {
				tt.change(s)
			}
			require.ElementsMatch(t, tt.want, evictiontest.Evicted(s.Plan()))
		})
	}
}

func TestPlanAges(t *testing.T) {
	s := evictiontest.New()
	s.Volume("old", unreferenced, 1, evictiontest.ReleasedAgo(7*24*time.Hour+1))
	s.Volume("young", unreferenced, 1, evictiontest.ReleasedAgo(7*24*time.Hour))
	s.Volume("old but open", unreferenced, 1, evictiontest.ReleasedAgo(8*24*time.Hour), func(v *inventory.Volume) { v.Open = true })
	s.Volume("now", unreferenced, 1, evictiontest.Immediate, evictiontest.ReleasedAgo(0))
	s.Volume("old and now", unreferenced, 1, evictiontest.Immediate, evictiontest.ReleasedAgo(30*24*time.Hour))
	require.ElementsMatch(t, []string{"Immediate now", "Immediate old and now"}, evictiontest.Evicted(s.Plan()), "no greatest age is set")
	s.Policy.MaxAge = 7 * 24 * time.Hour
	require.ElementsMatch(t, []string{"Immediate now", "Immediate old and now", "MaxAge old"}, evictiontest.Evicted(s.Plan()))
}

// Plan and NodeStorage count in whole seconds: volumes that were released within one second may be evicted at the
// same time, and those that were last used within one second are evicted by size and name.
func TestPlanGoesByWholeSeconds(t *testing.T) {
	s := evictiontest.New()
	s.Policy.MinAge = time.Minute
	for i, name := range []string{"c", "b", "a"} {
		at := s.View.Now.Add(-time.Minute + time.Duration(i)*300*time.Millisecond + 100*time.Millisecond)
		s.Volume(name, unreferenced, 1, func(v *inventory.Volume) { v.LastUsed, v.Released = at, at })
	}
	s.PersistentVolume("promised", 98)
	s.View.Now = s.View.Now.Add(time.Second - 1)
	require.Empty(t, evictiontest.Evicted(s.Plan()), "the seconds of their release are not over")
	due := eviction.NextOfAge(s.View, s.Policy.MinAge)
	require.Equal(t, evictiontest.Now.Add(time.Second), due)
	s.View.Now = due
	require.Equal(t, []string{"Promised a", "Promised b"}, evictiontest.Evicted(s.Plan()))
}

// Each volume is evicted for one reason, and the room that it frees counts for the next reason.
func TestPlanReasonsInTurn(t *testing.T) {
	s := evictiontest.New()
	s.Policy.MaxAge = 100 * time.Hour
	s.Volume("now", unreferenced, 5, evictiontest.Immediate, evictiontest.LastUsed(1))
	s.Volume("old", unreferenced, 5, evictiontest.ReleasedAgo(101*time.Hour), evictiontest.LastUsed(2))
	s.Volume("first", unreferenced, 5, evictiontest.LastUsed(6))
	s.Volume("second", unreferenced, 5, evictiontest.LastUsed(5))
	s.Volume("third", unreferenced, 5, evictiontest.LastUsed(4))
	s.ForeignVolumes(1, 73) // 1 GiB is free
	s.PersistentVolume("promised", 12)
	s.Policy.HighPercent, s.Policy.LowPercent = 84, 79
	require.Equal(t, []string{"Immediate now", "MaxAge old", "Promised first", "HighThreshold second"}, evictiontest.Evicted(s.Plan()))
}

func TestPlanSeveralPools(t *testing.T) {
	s := evictiontest.New()
	s.Pool("another", 100)
	s.Pool("empty", 0)
	s.Volume("here", unreferenced, 40, evictiontest.LastUsed(3))
	s.Volume("there", unreferenced, 40, evictiontest.LastUsed(9), evictiontest.InGroup("another"))
	s.Volume("same", unreferenced, 30, evictiontest.InGroup("another"))
	s.Volume("same", unreferenced, 10)
	s.PersistentVolume("promised", 60)
	r := s.Plan()
	require.Equal(t, []string{"Promised same", "Promised here"}, evictiontest.Evicted(r))
	for _, e := range r.Evictions {
		require.Equal(t, volume.Group("flexlvm"), e.Volume.Group, "room elsewhere is no help")
	}
	require.Len(t, r.Pools, 3)
	require.Equal(t, volume.PoolName("another"), r.Pools[0].Pool.Name)
	require.Equal(t, 70*volume.GiB, r.Pools[0].Reclaimable)
	require.Equal(t, 70, r.Pools[0].UsedPercent)
	require.False(t, r.Pools[0].Pressure)
	require.Equal(t, volume.PoolName("empty"), r.Pools[1].Pool.Name)
	require.False(t, r.Pools[1].Pressure, "a pool of nothing is not full")
	require.True(t, r.Pools[2].Pressure)
}

func TestPlanCounts(t *testing.T) {
	s := evictiontest.New()
	s.ForeignVolumes(3, 6)
	s.Volume("un", unreferenced, 10)
	s.Volume("kept", volume.Retained, 10)
	s.Volume("doomed_a", volume.Doomed, 10)
	s.Volume("making", volume.Creating, 10)
	s.Volume("z-theirs", volume.Ready, 10, func(v *inventory.Volume) { v.Cluster = "another" })
	s.Volume("a-theirs", unreferenced, 10, func(v *inventory.Volume) { v.Cluster = "another" })
	s.Volume("nonsense", "", 10, func(v *inventory.Volume) { v.Cluster, v.Problem = "", "two states" })
	s.Volume("ill", volume.Ready, 3, func(v *inventory.Volume) { v.Problem = "odd" })
	s.PersistentVolume("ill", 3)
	r := s.Plan()
	require.Equal(t, map[volume.State]int{
		volume.Ready: 2, unreferenced: 1, volume.Retained: 1, volume.Doomed: 1, volume.Creating: 1,
	}, r.Pools[0].ByState)
	require.Equal(t, 5, r.Pools[0].Foreign, "three of others, two of another cluster")
	require.Equal(t, 80, r.Pools[0].UsedPercent)
	require.Equal(t, 10*volume.GiB, r.Pools[0].Reclaimable)
	require.Equal(t, []volume.Name{"a-theirs", "z-theirs"}, namesOf(r.Foreign))
	require.Equal(t, []volume.Name{"ill", "nonsense"}, namesOf(r.Problems))
	require.Equal(t, s.View.Pools[0], r.Pools[0].Pool)
}

func namesOf(volumes []inventory.Volume) (out []volume.Name) {
	for _, v := range volumes {
		out = append(out, v.Name)
	}
	return out
}

func TestPlanOfNothing(t *testing.T) {
	r := eviction.Plan(eviction.View{Now: evictiontest.Now, Cluster: evictiontest.Cluster}, eviction.DefaultPolicy())
	require.Equal(t, eviction.Result{}, r)
}
