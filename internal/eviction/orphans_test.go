package eviction_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPlanFindsOrphans(t *testing.T) {
	orphaned := func(scene func(*evictiontest.Scene)) bool {
		s := evictiontest.New()
		scene(s)
		return len(s.Plan().Orphans) == 1
	}
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  bool
	}{
		"ready":    {func(s *evictiontest.Scene) { s.Volume("v", volume.Ready, 1) }, true},
		"creating": {func(s *evictiontest.Scene) { s.Volume("v", volume.Creating, 1) }, true},
		"with a problem": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1, func(v *inventory.Volume) { v.Problem = "odd" })
		}, true},
		"in a group not seen": {func(s *evictiontest.Scene) { s.Volume("v", volume.Ready, 1); s.View.Volumes[1].Group = "away" }, true},
		"unreferenced":        {func(s *evictiontest.Scene) { s.Volume("v", unreferenced, 1) }, false},
		"retained":            {func(s *evictiontest.Scene) { s.Volume("v", volume.Retained, 1) }, false},
		"doomed":              {func(s *evictiontest.Scene) { s.Volume("doomed_v", volume.Doomed, 1) }, false},
		"of another cluster": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1, func(v *inventory.Volume) { v.Cluster = "x" })
		}, false},
		"of no cluster": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1, func(v *inventory.Volume) { v.Cluster = "" })
		}, false},
		"explained": {func(s *evictiontest.Scene) { s.Volume("v", volume.Ready, 1); s.PersistentVolume("v", 1) }, false},
		"explained, being released": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1)
			s.PersistentVolume("v", 1, evictiontest.Phase(corev1.VolumeReleased))
		}, false},
		"explained, other cluster": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1)
			s.PersistentVolume("v", 1, evictiontest.OtherCluster)
		}, false},
		"explained, in a renamed group": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1)
			s.PersistentVolume("v", 1, evictiontest.GroupWas("former"))
		}, false},
		"explained, in a renamed group, being released": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1)
			s.PersistentVolume("v", 1, evictiontest.GroupWas("former"), evictiontest.Phase(corev1.VolumeReleased))
		}, false},
		"perhaps explained": {func(s *evictiontest.Scene) { s.Volume("v", volume.Ready, 1); s.View.Unreadable = []string{"v"} }, false},
		"explained elsewhere": {func(s *evictiontest.Scene) {
			s.Volume("v", volume.Ready, 1)
			s.PersistentVolume("v", 1, func(c *persistentvolume.Volume) { c.Group = "away" })
		}, true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, orphaned(tt.scene)) })
	}
}

func TestPlanReportsOrphans(t *testing.T) {
	s := evictiontest.New()
	s.Volume("b", volume.Ready, 10, evictiontest.LastUsed(50))
	s.Volume("a", volume.Ready, 10, evictiontest.LastUsed(50))
	s.Volume("never-used", volume.Creating, 10, evictiontest.LastUsed(240), func(v *inventory.Volume) { v.Namespace = "" })
	s.Volume("moved", volume.Ready, 10)
	s.PersistentVolume("moved", 10, func(c *persistentvolume.Volume) { c.Group = "away" })
	r := s.Plan()
	var names []string
	for _, o := range r.Orphans {
		names = append(names, string(o.Volume.Name))
	}
	require.Equal(t, []string{"never-used", "a", "b", "moved"}, names, "the oldest first")
	require.Equal(t, 240*time.Hour, r.Orphans[0].Age)
	require.Equal(t, 50*time.Hour, r.Orphans[1].Age)
	require.Equal(t, "no PersistentVolume names volume flexlvm/a of namespace db, state ready, 9 GiB; it was created 10d ago and last used 2d2h ago; "+
		"`flexlvm volumes undelete a --dry-run` prints a PersistentVolume for it, `flexlvm volumes forget a` gives it up", r.Orphans[1].Message)
	require.Contains(t, r.Orphans[3].Message, "; PersistentVolume moved names a volume of the same name in another volume group")
	require.Empty(t, r.Evictions)
}

// orphans adds live volumes, three orphans of 10 GiB, the oldest "o1", and an unreferenced volume; 8 GiB are free.
// OrphanShare allows the eviction of four orphans.
func orphans(s *evictiontest.Scene) {
	s.Policy.EvictOrphans, s.Policy.HighPercent, s.Policy.OrphanShare = true, 100, 20
	for i := range 17 {
		name := fmt.Sprintf("live%d", i)
		s.Volume(name, volume.Ready, 3)
		s.PersistentVolume(name, 3)
	}
	s.Volume("o1", volume.Ready, 10, evictiontest.LastUsed(90))
	s.Volume("o2", volume.Creating, 10, evictiontest.LastUsed(80))
	s.Volume("o3", volume.Ready, 10, evictiontest.LastUsed(70))
	s.Volume("un", unreferenced, 10, evictiontest.LastUsed(1))
}

func TestPlanEvictsOrphans(t *testing.T) {
	one := func(change func(*inventory.Volume)) func(*evictiontest.Scene) {
		return func(s *evictiontest.Scene) {
			for i := range s.View.Volumes {
				if s.View.Volumes[i].Name == "o1" {
					change(&s.View.Volumes[i])
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		promised int
		scene    func(*evictiontest.Scene)
		want     []string
	}{
		"no pressure":            {8, nil, nil},
		"unreferenced is enough": {18, nil, []string{"Promised un"}},
		"one":                    {19, nil, []string{"Promised un", "Orphan o1"}},
		"all":                    {48, nil, []string{"Promised un", "Orphan o1", "Orphan o2", "Orphan o3"}},
		"they would not help":    {49, nil, nil},
		"not allowed":            {19, func(s *evictiontest.Scene) { s.Policy.EvictOrphans = false }, nil},
		"threshold": {0, func(s *evictiontest.Scene) { s.Policy.HighPercent, s.Policy.LowPercent = 90, 75 },
			[]string{"HighThreshold un", "Orphan o1"}},
		"open":           {28, one(func(v *inventory.Volume) { v.Open = true }), []string{"Promised un", "Orphan o2"}},
		"mounted":        {28, one(func(v *inventory.Volume) { v.Mounts = []string{"/mnt"} }), []string{"Promised un", "Orphan o2"}},
		"has snapshots":  {28, one(func(v *inventory.Volume) { v.HasSnapshots = true }), []string{"Promised un", "Orphan o2"}},
		"with a problem": {28, one(func(v *inventory.Volume) { v.Problem = "odd" }), []string{"Promised un", "Orphan o2"}},
		"of today":       {28, one(func(v *inventory.Volume) { v.Created = evictiontest.HoursAgo(24) }), []string{"Promised un", "Orphan o2"}},
		"used today":     {28, one(func(v *inventory.Volume) { v.LastUsed = evictiontest.HoursAgo(23) }), []string{"Promised un", "Orphan o2"}},
		"of unknown age": {28, one(func(v *inventory.Volume) { v.Created = time.Time{} }), []string{"Promised un", "Orphan o2"}},
		"of unknown use": {28, one(func(v *inventory.Volume) { v.LastUsed = time.Time{} }), []string{"Promised un", "Orphan o2"}},
		"wanted elsewhere": {28, func(s *evictiontest.Scene) {
			s.PersistentVolume("o1", 10, func(c *persistentvolume.Volume) { c.Group = "away" })
		}, []string{"Promised un", "Orphan o2"}},
		"half a group":             {28, func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }, nil},
		"share of two":             {38, func(s *evictiontest.Scene) { s.Policy.OrphanShare = 10 }, []string{"Promised un", "Orphan o1", "Orphan o2"}},
		"share of two, not enough": {39, func(s *evictiontest.Scene) { s.Policy.OrphanShare = 10 }, nil},
		"always one":               {28, func(s *evictiontest.Scene) { s.Policy.OrphanShare = 1 }, []string{"Promised un", "Orphan o1"}},
		"one of two gone already": {28, func(s *evictiontest.Scene) { s.Policy.OrphanShare, s.View.OrphansEvicted = 10, 1 },
			[]string{"Promised un", "Orphan o1"}},
		"two of two gone already": {28, func(s *evictiontest.Scene) { s.Policy.OrphanShare, s.View.OrphansEvicted = 10, 2 }, nil},
		"more gone than allowed":  {18, func(s *evictiontest.Scene) { s.View.OrphansEvicted = 99 }, []string{"Promised un"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			orphans(s)
			if tt.promised > 0 {
				s.PersistentVolume("promised", tt.promised)
			}
			if tt.scene != nil {
				tt.scene(s)
			}
			r := s.Plan()
			require.Empty(t, r.Blocked)
			require.ElementsMatch(t, tt.want, evictiontest.Evicted(r))
			require.Equal(t, 10*volume.GiB, max(r.Pools[0].Reclaimable, volume.Bytes(r.Pools[0].Pool.Missing)*10*volume.GiB), "orphans do not count")
		})
	}
}

func TestPlanShareOfOrphansIsTheNodes(t *testing.T) {
	s := evictiontest.New()
	orphans(s)
	s.Policy.OrphanShare = 10 // two of the node's volumes
	s.Pool("another", 20)
	for _, name := range []string{"a1", "a2"} {
		s.Volume(name, volume.Ready, 10, evictiontest.LastUsed(99), evictiontest.InGroup("another"))
	}
	s.PersistentVolume("here", 28)
	s.PersistentVolume("there", 10, func(c *persistentvolume.Volume) { c.Group = "another" })
	r := s.Plan()
	require.Equal(t, []string{"Orphan a1", "Promised un", "Orphan o1"}, evictiontest.Evicted(r))
	require.Equal(t, "1 volume promised on this node (here for claim db/data-here) needs 28 GiB, and pool flexlvm has 8 GiB free, "+
		"and nothing unreferenced is left; evicting this orphan frees 10 GiB: no PersistentVolume names volume flexlvm/o1 of namespace db, state ready, 9 GiB; "+
		"it was created 10d ago and last used 3d18h ago", r.Evictions[2].Message)
}

func TestPlanIsBlocked(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(*evictiontest.Scene)
		want  string // part of Blocked; none for a plan that evicts
	}{
		"as it should be": {func(*evictiontest.Scene) {}, ""},
		"no cluster":      {func(s *evictiontest.Scene) { s.View.Cluster = "" }, "the UID of this cluster is not known"},
		"no claim": {func(s *evictiontest.Scene) { s.View.PersistentVolumes = nil },
			"nothing is evicted: the API server shows no PersistentVolume of this cluster for this node, which has 1 volume in state ready, as if it had come back empty; bring the PersistentVolumes back"},
		"no claim, no ready volume": {func(s *evictiontest.Scene) { s.View.PersistentVolumes, s.View.Volumes = nil, s.View.Volumes[1:] }, ""},
		"no claim that can be read": {func(s *evictiontest.Scene) { s.View.PersistentVolumes, s.View.Unreadable = nil, []string{"settled"} }, "no PersistentVolume of this cluster"},
		"no claim of this cluster":  {func(s *evictiontest.Scene) { evictiontest.OtherCluster(&s.View.PersistentVolumes[0]) }, "no PersistentVolume of this cluster"},
		"four orphans of five": {func(s *evictiontest.Scene) {
			for i := range 4 {
				s.Volume(fmt.Sprintf("o%d", i), volume.Ready, 1)
			}
		}, ""},
		"five orphans of six": {func(s *evictiontest.Scene) {
			for i := range 5 {
				s.Volume(fmt.Sprintf("o%d", i), volume.Ready, 1)
			}
		}, "nothing is evicted: no PersistentVolume names 5 of the 6 volumes in state ready, as if the API server had been restored from an old backup; bring"},
		"just half": {func(s *evictiontest.Scene) {
			for i := range 5 {
				s.Volume(fmt.Sprintf("o%d", i), volume.Ready, 1)
			}
			for i := range 4 {
				name := fmt.Sprintf("live%d", i)
				s.Volume(name, volume.Ready, 1)
				s.PersistentVolume(name, 1)
			}
		}, ""},
		"volumes of a renamed group": {func(s *evictiontest.Scene) {
			for i := range 5 {
				name := fmt.Sprintf("o%d", i)
				s.Volume(name, volume.Ready, 1)
				s.PersistentVolume(name, 1, evictiontest.GroupWas("former"))
			}
		}, ""},
		"half made ones are not ready": {func(s *evictiontest.Scene) {
			for i := range 9 {
				s.Volume(fmt.Sprintf("o%d", i), volume.Creating, 1)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Policy.EvictOrphans = true
			s.Policy.MaxAge = time.Hour
			s.Volume("now", unreferenced, 1, evictiontest.Immediate)
			s.Volume("old", unreferenced, 1)
			s.ForeignVolumes(1, 85)
			tt.scene(s)
			r := s.Plan()
			if tt.want == "" {
				require.Empty(t, r.Blocked)
				require.Equal(t, []string{"Immediate now", "MaxAge old"}, evictiontest.Evicted(r)[:2])
				return
			}
			require.Contains(t, r.Blocked, tt.want)
			require.Empty(t, r.Evictions)
			require.Len(t, r.Pools, 1, "what is known is reported all the same")
			if s.View.Cluster == "" {
				return // nobody can tell whether flexlvm has anything in the pool
			}
			require.True(t, r.Pools[0].Pressure)
			require.Positive(t, r.Pools[0].Shortfall)
			require.Contains(t, r.Pools[0].ShortfallMessage, r.Blocked)
		})
	}
}

// A shortfall message names where room could be found.
func TestPlanShortfallNamesTheWaysOut(t *testing.T) {
	s := evictiontest.New()
	s.PersistentVolume("promised", 90)
	s.Volume("orphan", volume.Ready, 4)
	s.Volume("wanted", unreferenced, 3)
	s.PersistentVolume("wanted", 3)
	s.Volume("ill", unreferenced, 2, func(v *inventory.Volume) { v.Problem = "odd" })
	require.Empty(t, s.Plan().Pools[0].ShortfallMessage, "90 GiB are free")
	s.PersistentVolume("more", 5)
	message := s.Plan().Pools[0].ShortfallMessage
	for _, part := range []string{
		"2 volumes promised on this node (more for claim db/data-more and 1 more) need 95 GiB, and pool flexlvm can give 90 GiB: 5 GiB is missing",
		"3 GiB in 1 unreferenced volume cannot be evicted while a PersistentVolume names it",
		"2 GiB in 1 unreferenced volume cannot be evicted because of a problem that needs manual action",
		"4 GiB in 1 volume without a PersistentVolume: look at them with `flexlvm volumes list`",
		"extend volume group flexlvm (`vgextend --metadatasize 16m flexlvm DEVICE`)",
	} {
		require.Contains(t, message, part)
	}
	s.PoolNamed("flexlvm").Missing = 1
	require.Contains(t, s.Plan().Pools[0].ShortfallMessage, "nothing is evicted from it: LVM cannot find 1 device of volume group flexlvm; see `pvs`")
}

// Orphans stay after the API server has gone back in time: it may lack the PersistentVolumes of a few volumes.
func TestOrphansStayWhereTheAPIServerHasGoneBack(t *testing.T) {
	s := evictiontest.New()
	s.Policy.EvictOrphans = true
	s.Volume("orphan", volume.Ready, 90, evictiontest.LastUsed(100))
	require.Equal(t, []string{"Orphan orphan"}, evictiontest.Evicted(s.Plan()))
	s.View.WentBack = "resourceVersion 500 after 1000"
	result := s.Plan()
	require.Empty(t, result.Evictions)
	require.Contains(t, result.OrphansBlocked, "no orphan is evicted: the API server has gone back in time (resourceVersion 500 after 1000)")

	s.Volume("old", unreferenced, 5)
	require.Equal(t, []string{"HighThreshold old"}, evictiontest.Evicted(s.Plan()), "what was given up goes")
	s.Policy.EvictOrphans = false
	require.Empty(t, s.Plan().OrphansBlocked, "nothing is blocked")
}
