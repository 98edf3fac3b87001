package eviction_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestStarts(t *testing.T) {
	type look struct {
		at      int // seconds since the first
		pods    []types.UID
		unmade  []string
		waitsTo int // seconds; 0: nothing to wait for
	}
	for name, looks := range map[string][]look{
		"nothing starts": {{at: 0}, {at: 10}},
		"a claim, its volume and its pod": {
			{at: 0, unmade: []string{"a"}, waitsTo: 60},
			{at: 1, unmade: []string{"a"}, pods: []types.UID{"pod"}, waitsTo: 60},
			{at: 3, pods: []types.UID{"pod"}, waitsTo: 60},
			{at: 6},
		},
		"a pod that does not start": {
			{at: 0, pods: []types.UID{"stuck"}, waitsTo: 60},
			{at: 59, pods: []types.UID{"stuck"}, waitsTo: 60},
			{at: 60, pods: []types.UID{"stuck"}},
			{at: 600, pods: []types.UID{"stuck"}},
			{at: 601, pods: []types.UID{"stuck", "new"}, waitsTo: 661},
		},
		"a claim that no pod comes for": {
			{at: 0, unmade: []string{"a"}, waitsTo: 60},
			{at: 61, unmade: []string{"a"}},
		},
		"one after the other, for more than a minute": {
			{at: 0, pods: []types.UID{"a"}, waitsTo: 60},
			{at: 40, pods: []types.UID{"a", "b"}, waitsTo: 60},
			{at: 59, pods: []types.UID{"c"}, waitsTo: 60},
			{at: 61, pods: []types.UID{"c", "d"}, waitsTo: 60}, // the limit has passed
			{at: 90, pods: []types.UID{"d"}, waitsTo: 60},
			{at: 95},
			{at: 100, pods: []types.UID{"e"}, waitsTo: 160},
		},
		"the clock is set back": {
			{at: 0, pods: []types.UID{"a"}, waitsTo: 60},
			{at: -3600, pods: []types.UID{"a"}, waitsTo: -3540},
			{at: -3540, pods: []types.UID{"a"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s eviction.Starts
			for _, l := range looks {
				scene := evictiontest.New()
				scene.View.Now = evictiontest.Now.Add(time.Duration(l.at) * time.Second)
				for _, name := range l.unmade {
					scene.PersistentVolume(name, 1)
				}
				for range 2 { // a round may decide twice
					got := s.Until(scene.View, l.pods)
					if l.waitsTo == 0 {
						require.False(t, got.After(scene.View.Now), "%+v: %s", l, got)
						continue
					}
					require.Equal(t, evictiontest.Now.Add(time.Duration(l.waitsTo)*time.Second), got, "%+v", l)
				}
			}
		})
	}
}

// PersistentVolumes that no pod can use, and those whose volume is gone, do not count as starting.
func TestWhatDoesNotStart(t *testing.T) {
	for name, change := range map[string]func(*persistentvolume.Volume){
		"given up":             func(c *persistentvolume.Volume) { c.Deleting, c.Phase = true, "Released" },
		"released":             evictiontest.Phase("Released"),
		"its data is gone":     func(c *persistentvolume.Volume) { c.FS = "1b3c" },
		"its snapshot is gone": func(c *persistentvolume.Volume) { c.Kind, c.Taken = volume.Snapshot, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.PersistentVolume("a", 1, change)
			var starts eviction.Starts
			require.Zero(t, starts.Until(s.View, nil))
		})
	}
}

// A new volume that is not open yet counts as starting, because most volumes are created before their pods reach the
// node.
func TestVolumeThatWasJustMade(t *testing.T) {
	for name, tt := range map[string]struct {
		state volume.State
		ago   time.Duration
		open  bool
		waits bool
	}{
		"made":           {volume.Ready, time.Second, false, true},
		"being made":     {volume.Creating, time.Second, false, true},
		"a pod has it":   {volume.Ready, time.Second, true, false},
		"nobody came":    {volume.Ready, time.Minute, false, false},
		"given up":       {volume.Unreferenced, time.Second, false, false},
		"kept by a word": {volume.Retained, time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Volume("a", tt.state, 1, func(v *inventory.Volume) { v.Created, v.Open = evictiontest.Now.Add(-tt.ago), tt.open })
			s.PersistentVolume("a", 1)
			var starts eviction.Starts
			require.Equal(t, tt.waits, starts.Until(s.View, nil).After(s.View.Now))
		})
	}
}

// While pods start, nothing is evicted for headroom or a threshold; all other evictions go on.
func TestStartsComeFirst(t *testing.T) {
	scene := func() *evictiontest.Scene {
		s := evictiontest.New()
		s.ForeignVolumes(1, 79)
		s.Volume("now", unreferenced, 2, evictiontest.LastUsed(9), evictiontest.Immediate)
		s.Volume("oldest", unreferenced, 6, evictiontest.LastUsed(9))
		s.Volume("older", unreferenced, 6, evictiontest.LastUsed(8))
		s.Volume("old", unreferenced, 4, evictiontest.LastUsed(7))
		s.Policy.Headroom = headroom(t, "8Gi")
		s.View.StartsUntil = evictiontest.Now.Add(time.Second)
		return s
	}
	for name, tt := range map[string]struct {
		change func(*evictiontest.Scene)
		want   []string
		waits  bool
	}{
		"a threshold": {func(*evictiontest.Scene) {}, []string{"Immediate now"}, true},
		"headroom":    {func(s *evictiontest.Scene) { s.Policy.HighPercent = 100 }, []string{"Immediate now"}, true},
		"it is over": {func(s *evictiontest.Scene) { s.View.StartsUntil = evictiontest.Now },
			[]string{"Immediate now", "HighThreshold oldest", "HighThreshold older", "HighThreshold old"}, false},
		"a promise does not wait": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 6); s.Policy.Headroom = headroom(t, "4Gi") },
			[]string{"Immediate now", "Promised oldest"}, true},
		"headroom goes with a promise": {func(s *evictiontest.Scene) { s.PersistentVolume("a", 6); s.Policy.HighPercent = 100 },
			[]string{"Immediate now", "Promised oldest", "Headroom older"}, false},
		"there is enough": {func(s *evictiontest.Scene) { s.Policy.Headroom, s.Policy.HighPercent = headroom(t, "4Gi"), 100 }, []string{"Immediate now"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := scene()
			tt.change(s)
			r := s.Plan()
			require.Equal(t, tt.want, evictiontest.Evicted(r))
			require.Equal(t, tt.waits, r.Postponed)
			if tt.waits {
				require.Zero(t, r.Pools[0].Shortfall, r.Pools[0].ShortfallMessage)
				require.Empty(t, r.Pools[0].InUseMessage)
			}
		})
	}
}

// In any scene, the evictions while pods start are the usual ones without those that wait, and none is for headroom
// alone.
func TestStartsPutOff(t *testing.T) {
	put := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 17))
		s := randomScene(r)
		s.Policy.Headroom, s.Policy.EvictOrphans = headroom(t, pick(r, "auto", "10Gi", "20%")), false
		before := s.Plan()
		s.View.StartsUntil = evictiontest.Now.Add(time.Minute)
		got := s.Plan()
		oracle{s.View, s.Policy}.checkEach(t, seed, got)
		promised := map[volume.PoolName]bool{}
		for _, e := range before.Evictions {
			promised[e.Volume.Pool()] = promised[e.Volume.Pool()] || e.Reason == eviction.ReasonPromised
		}
		rest := func(all []eviction.Eviction) (out []string, less []eviction.Eviction) {
			for _, e := range all {
				if e.Volume.ThinPool == "" && (e.Reason == eviction.ReasonHeadroom || e.Reason == eviction.ReasonHighThreshold) {
					less = append(less, e)
					continue
				}
				out = append(out, string(e.Reason)+" "+string(e.Volume.Name))
			}
			return out, less
		}
		want, waits := rest(before.Evictions)
		evicted, with := rest(got.Evictions)
		require.Equal(t, want, evicted, "seed %d", seed)
		for _, e := range with {
			require.Equal(t, eviction.ReasonHeadroom, e.Reason, "seed %d", seed)
			require.True(t, promised[e.Volume.Pool()], "seed %d: %s goes for headroom alone", seed, e.Volume.Name)
		}
		for _, e := range waits {
			if e.Reason == eviction.ReasonHighThreshold || !promised[e.Volume.Pool()] {
				put++
				require.True(t, got.Postponed, "seed %d", seed)
			}
		}
		for i, p := range got.Pools {
			require.Equal(t, before.Pools[i].Reclaimable, p.Reclaimable, "seed %d", seed)
			require.Equal(t, before.Pools[i].Allocatable, p.Allocatable, "seed %d", seed)
			if p.Pool.Name.Thin() {
				require.Equal(t, before.Pools[i], p, "seed %d", seed)
			}
		}
	}
	require.Greater(t, put, 200, "the views are too tame")
}

// A PersistentVolume whose volume was lost does not count as starting either.
func TestWhatIsLostDoesNotStart(t *testing.T) {
	s := evictiontest.New()
	s.PersistentVolume("a", 1)
	var starts eviction.Starts
	require.NotZero(t, starts.Until(s.View, nil))
	lose(s)
	starts = eviction.Starts{}
	require.Zero(t, starts.Until(s.View, nil))
}
