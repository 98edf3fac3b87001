package gc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const unreferenced = volume.Unreferenced

// Who may go at all. Each scene promises 99 GiB of the pool's 100, so that every
// candidate has to go; "victim" of 20 GiB is the only one.
func TestPlanCandidates(t *testing.T) {
	type mine = func(*node.Volume)
	const stays, goes = false, true
	for name, tt := range map[string]struct {
		state  volume.State
		change mine
		scene  func(*scene)
		goes   bool
	}{
		"unreferenced":                  {state: unreferenced, goes: goes},
		"inactive":                      {state: unreferenced, change: func(v *node.Volume) { v.Active = false }, goes: goes},
		"dataset":                       {state: unreferenced, change: func(v *node.Volume) { v.Kind = volume.Dataset }, goes: goes},
		"ready":                         {state: volume.Ready, scene: func(s *scene) { s.claim("victim", 20) }},
		"ready, unexplained":            {state: volume.Ready},
		"creating, unexplained":         {state: volume.Creating},
		"retained":                      {state: volume.Retained},
		"nonsense":                      {state: "", change: func(v *node.Volume) { v.Problem = "two states" }},
		"state unknown to all":          {state: ""},
		"with a problem":                {state: unreferenced, change: func(v *node.Volume) { v.Problem = "odd" }},
		"open":                          {state: unreferenced, change: func(v *node.Volume) { v.Open = true }},
		"mounted":                       {state: unreferenced, change: func(v *node.Volume) { v.Mounts = []string{"/mnt"} }},
		"has snapshots":                 {state: unreferenced, change: func(v *node.Volume) { v.Origin = true }},
		"of another cluster":            {state: unreferenced, change: func(v *node.Volume) { v.Cluster = "another" }},
		"of no cluster":                 {state: unreferenced, change: func(v *node.Volume) { v.Cluster = "" }},
		"in half a group":               {state: unreferenced, scene: func(s *scene) { s.group("flexlvm").Missing = 1 }},
		"in one of two groups":          {state: unreferenced, scene: func(s *scene) { s.pool("flexlvm", 50) }},
		"in a group not seen":           {state: unreferenced, scene: func(s *scene) { s.view.Volumes[1].Group = "away" }},
		"wanted":                        {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20) }},
		"wanted under another name":     {state: unreferenced, scene: func(s *scene) { s.claim("x", 20, func(c *gc.Claim) { c.Volume = "victim" }) }},
		"of a PV that cannot be read":   {state: unreferenced, scene: func(s *scene) { s.view.Unreadable = []string{"victim"} }},
		"of a PV deleted but bound":     {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20, deleting) }},
		"of a PV released, kept":        {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20, retain, phase(corev1.VolumeReleased)) }},
		"of another cluster's PV":       {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20, cluster2, phase(corev1.VolumeReleased)) }},
		"of a PV without cluster":       {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20, noCluster, phase(corev1.VolumeReleased)) }},
		"of a PV being released":        {state: unreferenced, scene: func(s *scene) { s.claim("victim", 20, phase(corev1.VolumeReleased)) }, goes: goes},
		"of a PV in another group":      {state: unreferenced, scene: func(s *scene) { s.pool("z", 1); s.claim("victim", 0, func(c *gc.Claim) { c.Group = "z" }) }, goes: goes},
		"of exactly the least age":      {state: unreferenced, change: releasedAgo(2 * time.Minute), goes: goes},
		"one second too young":          {state: unreferenced, change: releasedAgo(2*time.Minute - time.Second)},
		"given up in the future":        {state: unreferenced, change: releasedAgo(-time.Hour)},
		"given up nobody knows when":    {state: unreferenced, change: func(v *node.Volume) { v.Released = time.Time{} }},
		"young, immediate":              {state: unreferenced, change: func(v *node.Volume) { immediate(v); v.Released = sceneNow }, goes: goes},
		"open, immediate":               {state: unreferenced, change: func(v *node.Volume) { immediate(v); v.Open = true }},
		"wanted, immediate":             {state: unreferenced, change: immediate, scene: func(s *scene) { s.claim("victim", 20) }},
		"ready, immediate":              {state: volume.Ready, change: immediate},
		"another cluster's, immediate":  {state: unreferenced, change: func(v *node.Volume) { immediate(v); v.Cluster = "another" }},
		"in half a group, immediate":    {state: unreferenced, change: immediate, scene: func(s *scene) { s.group("flexlvm").Missing = 1 }},
		"unreadable's name, immediate":  {state: unreferenced, change: immediate, scene: func(s *scene) { s.view.Unreadable = []string{"victim"} }},
		"of no size":                    {state: unreferenced, change: func(v *node.Volume) { v.Device = 0 }},
		"doomed, still under its names": {state: volume.Doomed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			change := tt.change
			if change == nil {
				change = func(*node.Volume) {}
			}
			s.volume("victim", tt.state, 20, change)
			s.claim("promised", 99)
			if tt.scene != nil {
				tt.scene(s)
			}
			r := s.plan()
			require.Empty(t, r.Blocked)
			if tt.goes == stays {
				require.Empty(t, evicted(r))
				require.Zero(t, r.Pools[0].Reclaimable)
				return
			}
			require.Equal(t, volume.Name("victim"), r.Evictions[0].Volume.Name)
			require.Equal(t, 20*volume.GiB, r.Pools[0].Reclaimable)
		})
	}
}

// Which go first, and how many.
func TestPlanOrder(t *testing.T) {
	s := newScene()
	s.volume("c-newer", unreferenced, 10, lastUsed(2))
	s.volume("b-older", unreferenced, 10, lastUsed(9))
	s.volume("d-small", unreferenced, 5, lastUsed(9))
	s.volume("a-older", unreferenced, 10, lastUsed(9))
	s.volume("e-large", unreferenced, 20, lastUsed(9))
	// 44 GiB are free; 10 more each time.
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
		again.claim("promised", need)
		require.Equal(t, want, evicted(again.plan()), "%d GiB are promised", need)
	}
}

func TestPlanThreshold(t *testing.T) {
	for name, tt := range map[string]struct {
		others int // beside 1 GiB settled and candidates of 2, 3 and 4 GiB
		change func(*scene)
		want   []string
	}{
		"under":                 {74, nil, nil},
		"just at it":            {75, nil, []string{"HighThreshold v2", "HighThreshold v3"}},
		"over":                  {77, nil, []string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"}},
		"never enough":          {89, nil, []string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"}},
		"off":                   {89, func(s *scene) { s.policy.HighPercent = 100 }, nil},
		"off, full to the brim": {90, func(s *scene) { s.policy.HighPercent = 100 }, nil},
		"other figures":         {60, func(s *scene) { s.policy.HighPercent, s.policy.LowPercent = 70, 68 }, []string{"HighThreshold v2"}},
		"doomed pending":        {73, func(s *scene) { s.volume("doomed_x", volume.Doomed, 2) }, nil},
		"doomed pending, still over": {
			76, func(s *scene) { s.volume("doomed_x", volume.Doomed, 4) },
			[]string{"HighThreshold v2", "HighThreshold v3", "HighThreshold v4"},
		},
		"what goes anyway counts": {
			75, func(s *scene) { s.volume("now", unreferenced, 3, immediate) },
			[]string{"Immediate now", "HighThreshold v2", "HighThreshold v3"},
		},
		"what goes anyway is enough": {
			74, func(s *scene) { s.volume("now", unreferenced, 3, immediate) },
			[]string{"Immediate now"},
		},
		"what is promised does not count": {50, func(s *scene) { s.claim("promised", 40) }, nil},
		"a byte under":                    {75, func(s *scene) { s.group("flexlvm").Free++ }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.volume("v2", unreferenced, 2, lastUsed(9))
			s.volume("v3", unreferenced, 3, lastUsed(8))
			s.volume("v4", unreferenced, 4, lastUsed(7))
			s.others(1, tt.others)
			if tt.change != nil {
				tt.change(s)
			}
			require.ElementsMatch(t, tt.want, evicted(s.plan()))
		})
	}
}

func TestPlanAges(t *testing.T) {
	s := newScene()
	s.volume("old", unreferenced, 1, releasedAgo(7*24*time.Hour+1))
	s.volume("young", unreferenced, 1, releasedAgo(7*24*time.Hour))
	s.volume("old but open", unreferenced, 1, releasedAgo(8*24*time.Hour), func(v *node.Volume) { v.Open = true })
	s.volume("now", unreferenced, 1, immediate, releasedAgo(0))
	s.volume("old and now", unreferenced, 1, immediate, releasedAgo(30*24*time.Hour))
	require.ElementsMatch(t, []string{"Immediate now", "Immediate old and now"}, evicted(s.plan()), "no greatest age is set")
	s.policy.MaxAge = 7 * 24 * time.Hour
	require.ElementsMatch(t, []string{"Immediate now", "Immediate old and now", "MaxAge old"}, evicted(s.plan()))
}

// A volume goes for one reason only, and what it gives counts for the next.
func TestPlanReasonsInTurn(t *testing.T) {
	s := newScene()
	s.policy.MaxAge = 100 * time.Hour
	s.volume("now", unreferenced, 5, immediate, lastUsed(1))
	s.volume("old", unreferenced, 5, releasedAgo(101*time.Hour), lastUsed(2))
	s.volume("first", unreferenced, 5, lastUsed(6))
	s.volume("second", unreferenced, 5, lastUsed(5))
	s.volume("third", unreferenced, 5, lastUsed(4))
	s.others(1, 73) // 1 GiB is free
	s.claim("promised", 12)
	s.policy.HighPercent, s.policy.LowPercent = 84, 79
	require.Equal(t, []string{"Immediate now", "MaxAge old", "Promised first", "HighThreshold second"}, evicted(s.plan()))
}

func TestPlanSeveralPools(t *testing.T) {
	s := newScene()
	s.pool("another", 100)
	s.pool("empty", 0)
	s.volume("here", unreferenced, 40, lastUsed(3))
	s.volume("there", unreferenced, 40, lastUsed(9), inGroup("another"))
	s.volume("same", unreferenced, 30, inGroup("another"))
	s.volume("same", unreferenced, 10)
	s.claim("promised", 60)
	r := s.plan()
	require.Equal(t, []string{"Promised same", "Promised here"}, evicted(r))
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
	s := newScene()
	s.others(3, 6)
	s.volume("un", unreferenced, 10)
	s.volume("kept", volume.Retained, 10)
	s.volume("doomed_a", volume.Doomed, 10)
	s.volume("making", volume.Creating, 10)
	s.volume("z-theirs", volume.Ready, 10, func(v *node.Volume) { v.Cluster = "another" })
	s.volume("a-theirs", unreferenced, 10, func(v *node.Volume) { v.Cluster = "another" })
	s.volume("nonsense", "", 10, func(v *node.Volume) { v.Cluster, v.Problem = "", "two states" })
	s.volume("ill", volume.Ready, 3, func(v *node.Volume) { v.Problem = "odd" })
	s.claim("ill", 3)
	r := s.plan()
	require.Equal(t, map[volume.State]int{
		volume.Ready: 2, unreferenced: 1, volume.Retained: 1, volume.Doomed: 1, volume.Creating: 1,
	}, r.Pools[0].ByState)
	require.Equal(t, 5, r.Pools[0].Foreign, "three of others, two of another cluster")
	require.Equal(t, 80, r.Pools[0].UsedPercent)
	require.Equal(t, 10*volume.GiB, r.Pools[0].Reclaimable)
	require.Equal(t, []volume.Name{"a-theirs", "z-theirs"}, namesOf(r.Foreign))
	require.Equal(t, []volume.Name{"ill", "nonsense"}, namesOf(r.Problems))
	require.Equal(t, s.view.Pools[0], r.Pools[0].Pool)
}

func namesOf(volumes []node.Volume) (out []volume.Name) {
	for _, v := range volumes {
		out = append(out, v.Name)
	}
	return out
}

func TestPlanOfNothing(t *testing.T) {
	r := gc.Plan(gc.View{Now: sceneNow, Cluster: sceneCluster}, gc.DefaultPolicy())
	require.Equal(t, gc.Result{}, r)
}
