package eviction_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A thinScene is a scene with an additional thin pool of 100 GiB, whose volumes hold 3 GiB each.
type thinScene struct{ *evictiontest.Scene }

const thinPool = volume.PoolName("flexlvm/thinpool")

func newThinScene() thinScene {
	s := thinScene{evictiontest.New()}
	s.Pool(string(thinPool), 100)
	s.PoolNamed(thinPool).UUID = "of-the-pool"
	s.PoolNamed(thinPool).Thin = &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: true, Metadata: 100, MetadataUsed: 10}
	return s
}

func (s thinScene) thin(name string, state volume.State, full int, change ...func(*inventory.Volume)) {
	s.Volume(name, state, 3, append([]func(*inventory.Volume){func(v *inventory.Volume) {
		v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
		v.AllocatedWhenFull = volume.Bytes(full) * volume.GiB
		v.Size = v.AllocatedWhenFull / 10 * 9
	}}, change...)...)
}

func (s thinScene) thinClaim(name string, charge int, change ...func(*persistentvolume.Volume)) {
	s.PersistentVolume(name, charge, append([]func(*persistentvolume.Volume){func(c *persistentvolume.Volume) {
		c.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
	}}, change...)...)
}

// thinFailedRemoval adds a volume that could not be removed, and that holds nothing.
func (s thinScene) thinFailedRemoval(name string) {
	s.thin(name, volume.Doomed, 10, evictiontest.WithProblem, func(v *inventory.Volume) { v.Allocated = 0 })
}

// thinReplica adds a replica that may be evicted, and its PersistentVolume.
func (s thinScene) thinReplica(name string, charge int) {
	s.Replica(name, charge, func(v *inventory.Volume, c *persistentvolume.Volume) {
		v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
		v.AllocatedWhenFull, v.Allocated, c.Shape = v.Allocated, 3*volume.GiB, v.Shape
	})
}

func (s thinScene) result(t *testing.T) eviction.PoolResult {
	t.Helper()
	all := s.Plan()
	require.Len(t, all.Pools, 2)
	require.Equal(t, thinPool, all.Pools[1].Pool.Name)
	return all.Pools[1]
}

func TestThinAllocatable(t *testing.T) {
	const slack = 100 * volume.GiB / 5000
	const all = 100*volume.GiB - slack
	for name, tt := range map[string]struct {
		scene func(thinScene)
		want  volume.Bytes
	}{
		"all of it, but what LVM does not tell": {func(thinScene) {}, all},
		"promised, not made":                    {func(s thinScene) { s.thinClaim("a", 10) }, all},
		"promised and made":                     {func(s thinScene) { s.thinClaim("a", 10); s.thin("a", volume.Ready, 10) }, all},
		"holds more than its ratio charges":     {func(s thinScene) { s.thinClaim("a", 1); s.thin("a", volume.Ready, 10) }, all - 2*volume.GiB},
		"an orphan may be written to":           {func(s thinScene) { s.thin("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"retained, too":                         {func(s thinScene) { s.thin("a", volume.Retained, 10) }, all - 10*volume.GiB},
		"another cluster's":                     {func(s thinScene) { s.thin("a", volume.Ready, 10, func(v *inventory.Volume) { v.Cluster = "another" }) }, all - 10*volume.GiB},
		"about to be free":                      {func(s thinScene) { s.thin("doomed_a", volume.Doomed, 10) }, all},
		"its removal fails":                     {func(s thinScene) { s.thin("doomed_a", volume.Doomed, 10, evictiontest.WithProblem) }, all - 3*volume.GiB},
		"its removal has failed and is retried": {func(s thinScene) {
			s.thin("doomed_a", volume.Doomed, 10, evictiontest.WithProblem)
			s.View.Removing = map[string]bool{evictiontest.GroupUUID + "/uuid-doomed_a": true}
		}, all},
		"another cluster removes it": {func(s thinScene) {
			s.thin("doomed_a", volume.Doomed, 10, func(v *inventory.Volume) { v.Cluster = "another" })
		}, all - 3*volume.GiB},
		"may be evicted":         {func(s thinScene) { s.thin("a", unreferenced, 10) }, all},
		"may not be evicted yet": {func(s thinScene) { s.thin("a", unreferenced, 10, evictiontest.ReleasedAgo(0)) }, all - 3*volume.GiB},
		"others":                 {func(s thinScene) { s.PoolNamed(thinPool).Free -= 5 * volume.GiB }, all - 5*volume.GiB + slack},
		"others, beside a clone": {func(s thinScene) {
			s.claimed("source", 30)
			s.claimed("clone", 30)
			s.PoolNamed(thinPool).Free += 30*volume.GiB - 5*volume.GiB
			s.PoolNamed(thinPool).Thin.Others = 5 * volume.GiB
		}, all - 5*volume.GiB},
		"others that LVM does not tell of": {func(s thinScene) {
			s.claimed("source", 30)
			s.claimed("clone", 30)
			s.PoolNamed(thinPool).Free += 30*volume.GiB - 5*volume.GiB
			s.PoolNamed(thinPool).Thin.Unreported = 20 * volume.GiB
		}, all - 20*volume.GiB},
		"others cannot hold more than is in use": {func(s thinScene) {
			s.PoolNamed(thinPool).Free -= 5 * volume.GiB
			s.PoolNamed(thinPool).Thin.Unreported = 20 * volume.GiB
		}, all - 5*volume.GiB},
		"of the group, not of the pool": {func(s thinScene) { s.Volume("a", volume.Ready, 10); s.PersistentVolume("b", 10) }, all},
		"more than there is":            {func(s thinScene) { s.thin("a", volume.Ready, 200) }, 0},
		"blocked": {func(s thinScene) {
			s.View.PersistentVolumes = nil
			s.thin("a", unreferenced, 10)
		}, all - 3*volume.GiB},
		"two removals fail, so no more are begun": {func(s thinScene) {
			s.thinFailedRemoval("doomed_x")
			s.thinFailedRemoval("doomed_y")
			s.thin("a", unreferenced, 10)
			s.thinReplica("b", 10)
		}, all - 3*volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			tt.scene(s)
			require.Equal(t, tt.want.String(), s.result(t).Allocatable.String())
		})
	}
}

// LVM rounds the usage of the pool and of its volumes in different steps, so their difference varies during writes.
// Allocatable must not.
func TestThinAllocatableIsSteady(t *testing.T) {
	const grain = 100 * volume.GiB / 10000
	s := newThinScene()
	for i := range 3 {
		name := fmt.Sprintf("v-%d", i)
		s.thinClaim(name, 30)
		s.thin(name, volume.Ready, 30)
	}
	want := s.result(t).Allocatable
	for round := range 20 {
		ours := volume.Bytes(0)
		for i := range s.View.Volumes {
			if v := &s.View.Volumes[i]; v.Layout == volume.Thin {
				v.Allocated += 3 * volume.MiB
				ours += v.Allocated
			}
		}
		used := ours / grain * grain
		if round%2 == 0 {
			used += grain
		}
		s.PoolNamed(thinPool).Free = 100*volume.GiB - used
		require.Equal(t, want.String(), s.result(t).Allocatable.String())
	}
}

func TestThinClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(thinScene)
		want  string
	}{
		"open":                   {func(thinScene) {}, ""},
		"unfit":                  {func(s thinScene) { s.PoolNamed(thinPool).Thin.Unfit = "it is ill" }, "thin pool flexlvm/thinpool: it is ill"},
		"under the watermark":    {func(s thinScene) { s.PoolNamed(thinPool).Free = 20*volume.GiB + 1 }, ""},
		"at the watermark":       {func(s thinScene) { s.PoolNamed(thinPool).Free = 20 * volume.GiB }, "is 80% full with what cannot be evicted, and --thin-data-watermark-percent is 80"},
		"what may go is no harm": {func(s thinScene) { s.thin("a", unreferenced, 10); s.PoolNamed(thinPool).Free = 18 * volume.GiB }, ""},
		"what is young is": {func(s thinScene) {
			s.thin("a", unreferenced, 10, evictiontest.ReleasedAgo(0))
			s.PoolNamed(thinPool).Free = 18 * volume.GiB
		}, "82% full"},
		"what may go after two removals have failed is": {func(s thinScene) {
			s.thinFailedRemoval("doomed_x")
			s.thinFailedRemoval("doomed_y")
			s.thin("a", unreferenced, 10)
			s.PoolNamed(thinPool).Free = 18 * volume.GiB
		}, "thin pool flexlvm/thinpool is 82% full, and --thin-data-watermark-percent is 80; 2 volumes that were given up could not be removed (flexlvm/doomed_x: odd), so what could be evicted counts as used until that is corrected; "},
		"nothing may go after two removals have failed": {func(s thinScene) {
			s.thinFailedRemoval("doomed_x")
			s.thinFailedRemoval("doomed_y")
			s.PoolNamed(thinPool).Free = 18 * volume.GiB
		}, "is 82% full with what cannot be evicted"},
		"metadata":           {func(s thinScene) { s.PoolNamed(thinPool).Thin.MetadataUsed = 80 }, "the metadata of thin pool flexlvm/thinpool is 80% full"},
		"metadata has room":  {func(s thinScene) { s.PoolNamed(thinPool).Thin.MetadataUsed = 79 }, ""},
		"exported":           {func(s thinScene) { s.PoolNamed("flexlvm").Exported = true }, "volume group flexlvm is exported"},
		"a disk is gone":     {func(s thinScene) { s.PoolNamed(thinPool).Missing = 1 }, "cannot find 1 device of volume group flexlvm"},
		"LVM's own metadata": {func(s thinScene) { p := s.PoolNamed(thinPool); p.MetadataSize, p.MetadataFree = 100, 1 }, "of volume group flexlvm is 98% full"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			tt.scene(s)
			closed := s.result(t).Closed
			require.Equal(t, tt.want == "", closed == "", closed)
			require.Contains(t, closed, tt.want)
		})
	}
}

// Room is made for the unwritten part of a promise, even if the volume exists.
func TestThinPromises(t *testing.T) {
	s := newThinScene()
	s.thinClaim("a", 50)
	s.thin("a", volume.Ready, 50)
	s.thinClaim("b", 40)
	s.thin("old", unreferenced, 50, evictiontest.LastUsed(9), func(v *inventory.Volume) { v.Allocated = 20 * volume.GiB })
	s.thin("new", unreferenced, 50, evictiontest.LastUsed(1))
	r := s.result(t)
	require.Equal(t, 87*volume.GiB, r.Promised, "47 that a has not written, and all of b")
	require.Equal(t, []string{"Promised old"}, evictiontest.Evicted(s.Plan()), "74 are free")
	require.True(t, r.Pressure)
	require.Zero(t, r.Shortfall)

	s.thinClaim("c", 20)
	require.Equal(t, []string{"Promised old", "Promised new"}, evictiontest.Evicted(s.Plan()), "it is not enough for all, and of use")
	require.Positive(t, s.result(t).Shortfall)
	require.Contains(t, s.result(t).ShortfallMessage, "extend thin pool flexlvm/thinpool (lvextend)")
}

// A pool whose metadata fills up loses one volume per round, whatever its data.
func TestThinMetadataEvicts(t *testing.T) {
	s := newThinScene()
	s.thin("old", unreferenced, 50, evictiontest.LastUsed(9))
	s.thin("new", unreferenced, 50, evictiontest.LastUsed(1))
	require.Empty(t, evictiontest.Evicted(s.Plan()))
	s.PoolNamed(thinPool).Thin.MetadataUsed = 85
	require.Equal(t, []string{"HighThreshold old"}, evictiontest.Evicted(s.Plan()))
	require.Contains(t, s.Plan().Evictions[0].Message, "the metadata of thin pool flexlvm/thinpool is 85% full")
	require.True(t, s.result(t).Pressure)

	s.View.Removing = map[string]bool{evictiontest.GroupUUID + "/uuid-old": true}
	require.Empty(t, s.Plan().Evictions, "what that gives back is seen when it is gone")
}

// LVM does not report the usage of an inactive pool, which then appears full. Nothing may be evicted for that.
func TestThinPoolThatNobodyKnows(t *testing.T) {
	s := newThinScene()
	s.thin("old", unreferenced, 50, evictiontest.Immediate)
	p := s.PoolNamed(thinPool)
	p.Free, p.Thin.MetadataUsed, p.Thin.Known, p.Thin.Unfit = 0, p.Thin.Metadata, false, "it is not active"
	require.Empty(t, s.Plan().Evictions)
	r := s.result(t)
	require.Equal(t, "thin pool flexlvm/thinpool: it is not active", r.Closed)
	require.False(t, r.Pressure)
	require.Zero(t, r.Allocatable)
	require.Zero(t, r.Shortfall)
}

func TestThinThreshold(t *testing.T) {
	s := newThinScene()
	s.thin("old", unreferenced, 50)
	s.PoolNamed(thinPool).Free = 14 * volume.GiB
	require.Equal(t, []string{"HighThreshold old"}, evictiontest.Evicted(s.Plan()))
}

// A thin pool that claims have filled as promised has no shortfall. What it cannot give to claims that still write,
// and what cannot be removed, is a shortfall.
func TestThinPoolFullOfVolumesInUse(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(thinScene)
		short volume.Bytes
		says  string
	}{
		"written as promised": {func(thinScene) {}, 0, ""},
		"somebody waits":      {func(s thinScene) { s.thinClaim("b", 20) }, 20 * volume.GiB, "20 GiB is missing"},
		"overcommitted": {func(s thinScene) {
			for i := range s.View.Volumes {
				if v := &s.View.Volumes[i]; v.Layout == volume.Thin {
					v.AllocatedWhenFull = 150 * volume.GiB
				}
			}
		}, 6 * volume.GiB, "6 GiB too much for the low threshold of 80%"},
		"a removal fails": {func(s thinScene) {
			s.thin("doomed_b", volume.Doomed, 10, evictiontest.WithProblem)
			s.PoolNamed(thinPool).Free = 14 * volume.GiB
		}, 6 * volume.GiB, "could not be removed"},
		"nothing is evicted at all": {func(s thinScene) {
			for _, name := range []string{"a", "b", "c", "d", "e"} { // without PersistentVolumes
				s.Volume(name, volume.Ready, 0)
			}
		}, 6 * volume.GiB, "nothing is evicted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			s.thinClaim("claim", 100)
			s.thin("claim", volume.Ready, 100, func(v *inventory.Volume) { v.Allocated = 86 * volume.GiB })
			tt.scene(s)
			r := s.result(t)
			require.True(t, r.Pressure)
			require.Equal(t, tt.short, r.Shortfall, r.ShortfallMessage)
			require.Contains(t, r.ShortfallMessage, tt.says)
			if tt.short == 0 {
				require.Equal(t, "pool flexlvm/thinpool is 86% full (86 GiB of 100 GiB), the high threshold is 85%, and volumes in use fill it beyond the low one; "+
					"extend thin pool flexlvm/thinpool (lvextend), or delete claims that nobody needs", r.InUseMessage)
			}
		})
	}
}

// The volumes that pods may use, of any cluster, can still write what they do not hold yet.
func TestThinUnwritten(t *testing.T) {
	s := newThinScene()
	s.thin("used", volume.Ready, 10)
	s.thin("begun", volume.Creating, 10)
	s.thin("of another cluster", volume.Ready, 10, func(v *inventory.Volume) { v.Cluster = "another" })
	s.thin("over full", volume.Ready, 2)
	s.thin("released", unreferenced, 10)
	s.thin("snapshot", volume.Ready, 10, func(v *inventory.Volume) { v.Kind = volume.Snapshot })
	s.thin("inactive", volume.Ready, 10, func(v *inventory.Volume) { v.Active = false })
	s.thin("of another group", volume.Ready, 10, func(v *inventory.Volume) { v.GroupUUID = "another" })
	s.Volume("linear", volume.Ready, 3, func(v *inventory.Volume) { v.AllocatedWhenFull = 10 * volume.GiB })
	require.Equal(t, 21*volume.GiB, s.result(t).Unwritten)
	require.Zero(t, s.Plan().Pools[0].Unwritten)
}

func TestJudgeThin(t *testing.T) {
	s := newThinScene()
	s.thinClaim("a", 10)
	s.thinClaim("b", 10, func(c *persistentvolume.Volume) { c.Shape.ThinPool = "other" })
	s.thinClaim("c", 10, evictiontest.Phase(corev1.VolumeReleased), func(c *persistentvolume.Volume) { c.Shape.ThinPool = "other" })
	verdicts := eviction.Judge(s.View)
	require.Len(t, verdicts, 2)
	require.Contains(t, verdicts[0].Why, "needs thin pool flexlvm/other, which is not on this node")
	require.Equal(t, eviction.ActionRelease, verdicts[1].Action, "a volume that was never made, in a pool that is gone, is nobody's")
}
