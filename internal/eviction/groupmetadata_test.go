package eviction_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// useMetadata fills the LVM metadata area of the scene's group to this many bytes beyond the use that closes it.
func useMetadata(s *evictiontest.Scene, beyond volume.Bytes) {
	for i := range s.View.Pools {
		p := &s.View.Pools[i]
		p.MetadataSize, p.MetadataFree = volume.MiB, volume.MiB/2-(volume.MiB/2*90+99)/100-beyond
	}
}

// LVM uses only half of its metadata area, so an area that has half of its size free is empty.
func TestMetadataUsedPercent(t *testing.T) {
	for free, want := range map[volume.Bytes]int{60: 0, 50: 0, 25: 50, 10: 80, 5: 90, 0: 100} {
		require.Equal(t, want, eviction.MetadataUsedPercent(inventory.Pool{MetadataSize: 100, MetadataFree: free}))
	}
}

// A group whose LVM metadata area is too full for new volumes loses one volume per round, the least recently used of
// all its pools, if that certainly helps.
func TestPlanLVMMetadata(t *testing.T) {
	const sector = 512 // two volumes certainly free one, three free two, and five free three
	small := volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
	for name, tt := range map[string]struct {
		scene func(thinScene)
		want  []string
	}{
		"full":          {func(s thinScene) { useMetadata(s.Scene, 0) }, []string{"LVMMetadata old"}},
		"one byte less": {func(s thinScene) { useMetadata(s.Scene, -1) }, []string{}},
		"size unknown":  {func(s thinScene) { useMetadata(s.Scene, 0); s.PoolNamed("flexlvm").MetadataSize = 0 }, []string{}},
		"nothing is reported free": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.PoolNamed("flexlvm").MetadataFree = 0
			s.manyReleased(200)
		}, []string{}},
		"one sector is free": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.PoolNamed("flexlvm").MetadataFree = 512
			s.manyReleased(200)
		}, []string{"LVMMetadata old"}},
		"just enough":       {func(s thinScene) { useMetadata(s.Scene, 2*sector-1) }, []string{"LVMMetadata old"}},
		"not enough":        {func(s thinScene) { useMetadata(s.Scene, 2*sector) }, []string{}},
		"others fill it":    {func(s thinScene) { useMetadata(s.Scene, volume.MiB/20) }, []string{}},
		"copies count":      {func(s thinScene) { useMetadata(s.Scene, 3*sector-1); mirrored(s.volumeNamed("new")) }, []string{"LVMMetadata old"}},
		"copies not enough": {func(s thinScene) { useMetadata(s.Scene, 3*sector); mirrored(s.volumeNamed("new")) }, []string{}},
		"thin":              {func(s thinScene) { useMetadata(s.Scene, 0); evictiontest.LastUsed(20)(s.volumeNamed("thin")) }, []string{"LVMMetadata thin"}},
		"it holds no room":  {func(s thinScene) { useMetadata(s.Scene, 0); s.volumeNamed("old").Allocated = 0 }, []string{"LVMMetadata old"}},
		"what a thin pool holds is unknown": {func(s thinScene) {
			useMetadata(s.Scene, sector)
			s.PoolNamed(thinPool).Thin.Known = false
		}, []string{}},
		"directories take none of it": {func(s thinScene) {
			s.Pool("flexlvm:small", 10)
			s.PoolNamed("flexlvm:small").Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true}
			s.Volume("file", unreferenced, 1, evictiontest.LastUsed(30), func(v *inventory.Volume) { v.Shape = small })
			useMetadata(s.Scene, 2*sector)
		}, []string{}},
		"what one small volume frees may not be reported": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.View.KeptUnchecked = map[string]bool{"uuid-new": true, "uuid-thin": true}
		}, []string{}},
		"one is being removed": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.View.Removing = map[string]bool{evictiontest.GroupUUID + "/uuid-thin": true}
		}, []string{}},
		"a removal is to be finished": {func(s thinScene) { useMetadata(s.Scene, 0); s.Volume("doomed_a", volume.Doomed, 1) }, []string{}},
		"one removal has failed": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.Volume("doomed_a", volume.Doomed, 1, evictiontest.WithProblem)
		}, []string{"LVMMetadata old"}},
		"two removals have failed in another pool": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.thinFailedRemoval("doomed_a")
			s.thinFailedRemoval("doomed_b")
		}, []string{}},
		"another eviction frees some": {func(s thinScene) { useMetadata(s.Scene, 0); evictiontest.Immediate(s.volumeNamed("thin")) }, []string{"Immediate thin"}},
		"an eviction that waits for starting pods frees some": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			s.Policy.Headroom = headroom(t, "50%")
			s.ForeignVolumes(1, 60)
		}, []string{}},
		"too young": {func(s thinScene) {
			useMetadata(s.Scene, 0)
			evictiontest.ReleasedAgo(time.Minute)(s.volumeNamed("old"))
		}, []string{"LVMMetadata thin"}},
		"wanted again": {func(s thinScene) { useMetadata(s.Scene, 0); s.PersistentVolume("old", 1) }, []string{"LVMMetadata thin"}},
		"one may be kept": {func(s thinScene) {
			useMetadata(s.Scene, sector)
			s.View.KeptUnchecked = map[string]bool{"uuid-new": true}
		}, []string{}},
		"the oldest may be kept": {func(s thinScene) {
			useMetadata(s.Scene, sector-1)
			s.View.KeptUnchecked = map[string]bool{"uuid-old": true}
		}, []string{"LVMMetadata old"}},
		"a device is missing":   {func(s thinScene) { useMetadata(s.Scene, 0); s.PoolNamed("flexlvm").Missing = 1 }, []string{}},
		"evictions are blocked": {func(s thinScene) { useMetadata(s.Scene, 0); s.View.PersistentVolumes = nil }, []string{}},
		"orphans are not for that": {func(s thinScene) {
			useMetadata(s.Scene, 2*sector)
			s.Policy.EvictOrphans = true
			s.Volume("orphan", volume.Ready, 1)
		}, []string{}},
		"of another cluster": {func(s thinScene) {
			useMetadata(s.Scene, 2*sector)
			s.Volume("foreign", unreferenced, 1, func(v *inventory.Volume) { v.Cluster = "another" })
		}, []string{}},
		"of another group": {func(s thinScene) {
			useMetadata(s.Scene, 2*sector)
			s.Pool("other", 10)
			s.Volume("elsewhere", unreferenced, 1, evictiontest.InGroup("other"))
		}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			s.Policy.HighPercent = 100
			s.Policy.Headroom = eviction.Headroom{}
			s.Volume("new", unreferenced, 1, evictiontest.LastUsed(6))
			s.Volume("old", unreferenced, 1, evictiontest.LastUsed(9))
			s.thin("thin", unreferenced, 5, evictiontest.LastUsed(8))
			tt.scene(s)
			s.View.StartsUntil = s.View.Now.Add(time.Minute) // starting pods do not postpone it
			require.Equal(t, tt.want, evictiontest.Evicted(s.Plan()))
		})
	}
}

func (s thinScene) volumeNamed(name volume.Name) *inventory.Volume {
	i := slices.IndexFunc(s.View.Volumes, func(v inventory.Volume) bool { return v.Name == name })
	return &s.View.Volumes[i]
}

// manyReleased adds released volumes that were used later than the others and hold no room.
func (s thinScene) manyReleased(n int) {
	for i := range n {
		s.Volume(fmt.Sprintf("many%d", i), unreferenced, 0, evictiontest.LastUsed(5.5))
	}
}

func mirrored(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1} }

// The report says why a group is closed, and what becomes of it.
func TestPlanLVMMetadataMessages(t *testing.T) {
	s := evictiontest.New()
	useMetadata(s, 0)
	const full = "the usable half of LVM's metadata area of volume group flexlvm is 90% full, and from 90% on the group takes no new volumes; "
	const advice = "; delete claims that nobody needs, or create a group with a larger area (`flexlvm vg create`)"
	require.Equal(t, full+"no volume may be evicted for that now"+advice, s.Plan().Pools[0].Closed)

	s.Volume("old", unreferenced, 1)
	require.Equal(t, full+"evicting what may be evicted (1 volume) may not be enough, so nothing is evicted for that"+advice, s.Plan().Pools[0].Closed)

	s.Volume("used", unreferenced, 1, evictiontest.LastUsed(4.5))
	r := s.Plan()
	require.Equal(t, full+"volumes are evicted until it is less full (2 volumes may be); to have fewer evicted, create a group with a larger area (`flexlvm vg create`)", r.Pools[0].Closed)
	require.Equal(t, full+"evicting this volume frees some of it, and 1 GiB of room: volume flexlvm/old of namespace db was given up 4h ago and last used 5h ago", r.Evictions[0].Message)

	s.View.Pools[0].MetadataFree = 0
	require.Equal(t, "the usable half of LVM's metadata area of volume group flexlvm is 100% full, and from 90% on the group takes no new volumes; "+
		"LVM reports that nothing of it is free, as LVM 2.02 always does with lvmetad, so nothing is evicted for that; "+
		"set `use_lvmetad = 0` in lvm.conf and stop lvmetad; "+
		"if the area is really full, first remove a logical volume of another program, because LVM may not have room to write even a release; "+
		"or annotate the PersistentVolumes of claims that nobody needs (`kubectl annotate pv PV flexlvm.io/reclaim=immediate --overwrite`), "+
		"and then delete these claims, whose volumes are then removed for ever; or create a group with a larger area (`flexlvm vg create`)", s.Plan().Pools[0].Closed)
	require.Empty(t, evictiontest.Evicted(s.Plan()))

	for i := range s.View.Volumes {
		s.View.Volumes[i].Reclaim = volume.ReclaimImmediate
	}
	require.Equal(t, []string{"Immediate old", "Immediate used"}, evictiontest.Evicted(s.Plan()), "that is what the annotation is for")
}

// The report names the cause of why nothing is evicted, which is not that nothing may be.
func TestPlanLVMMetadataMessagesOfCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		scene func(thinScene)
		want  string
	}{
		"evictions are blocked": {func(s thinScene) { s.View.Cluster = "" },
			"nothing is evicted: the UID of this cluster is not known, so no volume is known to be this cluster's; check the daemon's access to namespace kube-system"},
		"removals have failed": {func(s thinScene) {
			s.Volume("doomed_a", volume.Doomed, 1, evictiontest.WithProblem)
			s.Volume("doomed_b", volume.Doomed, 1, evictiontest.WithProblem)
		}, "2 volumes that were given up could not be removed (flexlvm/doomed_a: odd), so nothing is evicted for that until that is corrected"},
		"removals have failed in another pool": {func(s thinScene) {
			s.thinFailedRemoval("doomed_c")
			s.thinFailedRemoval("doomed_d")
		}, "2 volumes that were given up could not be removed (flexlvm/doomed_c: odd), so nothing is evicted for that until that is corrected"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			useMetadata(s.Scene, 0)
			s.Volume("old", unreferenced, 1)
			tt.scene(s)
			const full = "the usable half of LVM's metadata area of volume group flexlvm is 90% full, and from 90% on the group takes no new volumes; "
			for _, p := range s.Plan().Pools {
				require.Equal(t, full+tt.want, p.Closed, p.Pool.Name)
			}
		})
	}
}

// A full area loses no more volumes than it takes until the group is open again.
func TestPlanLVMMetadataEnds(t *testing.T) {
	s := evictiontest.New()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.Volume(name, unreferenced, 1)
	}
	used := volume.Bytes(1500)
	var evicted []string
	for {
		useMetadata(s, used)
		r := s.Plan()
		if len(r.Evictions) == 0 {
			require.Empty(t, r.Pools[0].Closed)
			break
		}
		evicted = append(evicted, evictiontest.Evicted(r)...)
		s.View.Volumes = slices.DeleteFunc(s.View.Volumes, func(v inventory.Volume) bool { return v.Name == r.Evictions[0].Volume.Name })
		used -= 600
	}
	require.Equal(t, []string{"LVMMetadata a", "LVMMetadata b", "LVMMetadata c"}, evicted)
}
