package eviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func headroom(t *testing.T, text string) (h eviction.Headroom) {
	t.Helper()
	require.NoError(t, h.Set(text))
	return h
}

func TestHeadroomFlag(t *testing.T) {
	for text, want := range map[string]string{
		"auto": "auto", "0": "0", "5%": "5%", "0%": "0", "50%": "50%", "10Gi": "10737418240", "512Mi": "536870912", "4096": "4096",
	} {
		h := headroom(t, text)
		require.Equal(t, want, h.String())
		again := headroom(t, h.String())
		require.Equal(t, h, again)
	}
	for _, text := range []string{"", "much", "-1", "-5%", "51%", "5 %", "1.5Gi", "10GB", "99999999Ti", "%"} {
		h := eviction.HeadroomAuto
		require.ErrorContains(t, h.Set(text), fmt.Sprintf("%q", text))
		require.Equal(t, eviction.HeadroomAuto, h, "a flag that is refused changes nothing")
	}
}

// A pool of 100 GiB, in which volumes in use hold 87 GiB and unreferenced ones 10. The thresholds are off.
func TestPlanForHeadroom(t *testing.T) {
	for name, tt := range map[string]struct {
		headroom string
		change   func(*evictiontest.Scene)
		want     []string
	}{
		"none":             {"0", nil, []string{}},
		"there is":         {"3Gi", nil, []string{}},
		"bytes":            {"4Gi", nil, []string{"Headroom oldest"}},
		"more bytes":       {"6Gi", nil, []string{"Headroom oldest", "Headroom older"}},
		"a share":          {"5%", nil, []string{"Headroom oldest"}},
		"more than can go": {"40Gi", nil, []string{"Headroom oldest", "Headroom older", "Headroom old"}},
		"beside what is promised": {"4Gi", func(s *evictiontest.Scene) { s.PersistentVolume("a", 3) },
			[]string{"Headroom oldest", "Headroom older"}},
		"after what is promised": {"4Gi", func(s *evictiontest.Scene) { s.PersistentVolume("a", 5) },
			[]string{"Promised oldest", "Headroom older"}},
		"what is promised and has no room needs none": {"4Gi", func(s *evictiontest.Scene) { s.PersistentVolume("a", 50) }, []string{"Headroom oldest"}},
		"what is about to be free counts":             {"4Gi", func(s *evictiontest.Scene) { s.Volume("doomed_x", volume.Doomed, 1) }, []string{"Headroom oldest"}},
		"not the young":                               {"40Gi", func(s *evictiontest.Scene) { s.View.Volumes[2].Released = evictiontest.Now }, []string{"Headroom older", "Headroom old"}},
		"no orphans": {"40Gi", func(s *evictiontest.Scene) {
			s.Policy.EvictOrphans = true
			s.View.PersistentVolumes[1].Volume = "else"
			s.View.PersistentVolumes[1].Deleting = true
		}, []string{"Headroom oldest", "Headroom older", "Headroom old"}},
		"auto, nothing of late": {"auto", nil, []string{}},
		"auto": {"auto", func(s *evictiontest.Scene) {
			s.Volume("new", volume.Ready, 2, madeHoursAgo(1))
			s.PersistentVolume("new", 2)
			s.Volume("newer", volume.Ready, 1, madeHoursAgo(0))
			s.PersistentVolume("newer", 1)
		}, []string{"Headroom oldest", "Headroom older"}},
		"auto, a tenth at most": {"auto", func(s *evictiontest.Scene) {
			for i := range s.View.Volumes {
				s.View.Volumes[i].Created = evictiontest.HoursAgo(1)
			}
		}, []string{"Headroom oldest", "Headroom older"}},
		"auto, what goes counts no more": {"auto", func(s *evictiontest.Scene) { madeHoursAgo(2)(&s.View.Volumes[2]); madeHoursAgo(3)(&s.View.Volumes[3]) },
			[]string{"Headroom oldest"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.ForeignVolumes(1, 83)
			s.Volume("used", volume.Ready, 3)
			s.PersistentVolume("used", 3)
			s.Volume("oldest", unreferenced, 2, evictiontest.LastUsed(9))
			s.Volume("older", unreferenced, 4, evictiontest.LastUsed(8))
			s.Volume("old", unreferenced, 4, evictiontest.LastUsed(7))
			s.Policy.Headroom, s.Policy.HighPercent = headroom(t, tt.headroom), 100
			if tt.change != nil {
				tt.change(s)
			}
			r := s.Plan()
			require.Equal(t, tt.want, evictiontest.Evicted(r))
			require.False(t, slices.ContainsFunc(evictedLater(s, r).Evictions, func(e eviction.Eviction) bool { return e.Reason == eviction.ReasonHeadroom }),
				"it is never enough")
		})
	}
}

func madeHoursAgo(h float64) func(*inventory.Volume) {
	return func(v *inventory.Volume) { v.Created = evictiontest.HoursAgo(h) }
}

// evictedLater returns the plan for a scene after plan r has been carried out.
func evictedLater(s *evictiontest.Scene, r eviction.Result) eviction.Result {
	after := clone(s.View)
	for i, p := range after.Pools {
		for _, v := range s.View.Volumes {
			gone := v.State == volume.Doomed && v.Problem == "" || slices.ContainsFunc(r.Evictions, func(e eviction.Eviction) bool { return e.Volume.UUID == v.UUID })
			if gone && v.Pool() == p.Name && v.Cluster == s.View.Cluster {
				after.Pools[i].Free += v.Allocated
				after.Volumes = slices.DeleteFunc(after.Volumes, func(other inventory.Volume) bool { return other.UUID == v.UUID })
			}
		}
	}
	return eviction.Plan(after, s.Policy)
}

// In any scene, carrying out a plan leaves nothing to evict for headroom.
func TestHeadroomIsReachedOnce(t *testing.T) {
	went := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 11))
		s := randomScene(r)
		s.Policy.Headroom = headroom(t, pick(r, "auto", "10Gi", "20%"))
		for i := range s.View.Volumes {
			if one(r, 2) {
				s.View.Volumes[i].Created = evictiontest.Now.Add(-time.Duration(r.IntN(200)) * time.Hour)
			}
		}
		got := s.Plan()
		oracle{s.View, s.Policy}.checkEach(t, seed, got)
		if got.Blocked != "" || len(got.ReplicaEvictions) > 0 {
			continue
		}
		for _, e := range got.Evictions {
			if e.Reason == eviction.ReasonHeadroom {
				went++
				require.Equal(t, unreferenced, e.Volume.State, "seed %d", seed)
				require.Empty(t, e.Volume.ThinPool, "seed %d", seed)
			}
		}
		for _, e := range evictedLater(s, got).Evictions {
			require.NotEqual(t, eviction.ReasonHeadroom, e.Reason, "seed %d: %s: %s", seed, e.Volume.Name, e.Message)
		}
	}
	require.Greater(t, went, 100, "the views are too tame")
}
