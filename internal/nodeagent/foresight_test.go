package nodeagent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pressed is a node with volumes in every state, and a claim that waits for its volume.
func pressed(headroom string) *evictiontest.Scene {
	s := evictiontest.New()
	if err := s.Policy.Headroom.Set(headroom); err != nil {
		panic(err)
	}
	s.Policy.HighPercent, s.Policy.LowPercent = 70, 60
	s.ForeignVolumes(1, 10)
	s.Volume("old", volume.Unreferenced, 12, evictiontest.LastUsed(100))
	s.Volume("newer", volume.Unreferenced, 8, evictiontest.LastUsed(10))
	s.Volume("last", volume.Unreferenced, 4, evictiontest.LastUsed(6))
	s.Volume("young", volume.Unreferenced, 2, evictiontest.ReleasedAgo(time.Minute))
	s.Volume("busy", volume.Unreferenced, 2, func(v *inventory.Volume) { v.Open = true })
	s.Volume("kept", volume.Retained, 2)
	s.Volume("odd", volume.Unreferenced, 2, evictiontest.WithProblem)
	s.PersistentVolume("waiting", 5)
	return s
}

// unhurried is a node whose thresholds do not matter. Its volumes were created hours apart, but last used and
// released within seconds of each other.
func unhurried(headroom string) *evictiontest.Scene {
	s := evictiontest.New()
	if err := s.Policy.Headroom.Set(headroom); err != nil {
		panic(err)
	}
	s.Policy.HighPercent = 100
	s.ForeignVolumes(1, 50)
	for i, size := range []int{1, 3, 2, 4, 2, 1} {
		at := evictiontest.HoursAgo(5).Add(time.Duration(7-i) * 300 * time.Millisecond)
		s.Volume(fmt.Sprintf("released-%d", i), volume.Unreferenced, size, func(v *inventory.Volume) {
			v.LastUsed, v.Released, v.Created = at, evictiontest.Now.Add(time.Duration(i)*300*time.Millisecond-90*time.Second), evictiontest.HoursAgo(float64(10+2*i))
		})
	}
	for i, size := range []int{1, 2, 1, 1, 1} {
		name := fmt.Sprintf("used-%d", i)
		s.Volume(name, volume.Ready, size, func(v *inventory.Volume) { v.Created = evictiontest.HoursAgo(float64(11 + 2*i)) })
		s.PersistentVolume(name, size)
	}
	return s
}

// reported returns the report of a scene's daemon.
func reported(s *evictiontest.Scene) flexlvmv1.NodeStorage {
	f := observation{at: s.View.Now, view: s.View, result: s.Plan(), inventory: inventory.Inventory{Pools: s.View.Pools, Volumes: s.View.Volumes}}
	out := flexlvmv1.NodeStorage{Status: statusOf(flexlvmv1.NodeStorageStatus{}, f, report{now: s.View.Now, policy: s.Policy})}
	out.Name = "node-1"
	return out
}

// An overview, which is computed from a report alone, matches what the daemon then does: for claims from a small size
// to one that does not fit.
func TestPlanForesees(t *testing.T) {
	for _, headroom := range []string{"0", "auto", "5%", "3Gi"} {
		for name, scene := range map[string]func(string) *evictiontest.Scene{"pressed": pressed, "unhurried": unhurried} {
			t.Run(name+", headroom "+headroom, func(t *testing.T) {
				asked := []overview.Fit{}
				for size := range 90 {
					asked = append(asked, checkForesight(t, scene(headroom), volume.Bytes(size+1)*volume.GiB))
				}
				require.True(t, asked[0].Fits)
				most := slices.IndexFunc(asked, func(f overview.Fit) bool { return !f.Fits })
				require.Positive(t, most)
				require.Contains(t, asked[most].Why, "has no room")
				require.False(t, asked[most-1].After.IsZero(), "it waits until the last one may go")
				then := slices.ContainsFunc(asked, func(f overview.Fit) bool { return len(f.Then) > 0 })
				require.Equal(t, name == "pressed" || headroom != "0", then, "what goes once it is there")
				if name == "pressed" && headroom == "0" {
					require.Empty(t, asked[0].Evictions)
					require.Equal(t, []string{"Promised old", "Promised newer", "Promised last", "Promised young"}, foreseen(asked[most-1].Evictions))
				}
			})
		}
	}
}

// checkForesight computes the overview of a claim, and compares it with the plan of the daemon.
func checkForesight(t *testing.T, s *evictiontest.Scene, size volume.Bytes) overview.Fit {
	t.Helper()
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: size}
	objects := overview.Objects{Storages: []flexlvmv1.NodeStorage{reported(s)}}
	for _, c := range s.View.PersistentVolumes {
		object := ledgertest.PersistentVolume("node-1", ledgertest.Want(c.PV, c.Size), func(p *corev1.PersistentVolume) {
			p.Annotations["flexlvm.io/charged"] = fmt.Sprint(int64(c.Charged))
		})
		objects.Volumes = append(objects.Volumes, *object)
	}
	fit := overview.FitsOf(objects, spec, s.View.Now)[0]
	if !fit.Fits {
		return fit
	}
	s.PersistentVolume("new", 1, func(c *persistentvolume.Volume) { c.Size, c.Charged, c.Shape = spec.Size, spec.Charge(), spec.Shape() })
	s.View.StartsUntil = s.View.Now.Add(time.Minute)
	if !fit.After.IsZero() {
		s.View.Now = fit.After.Time
	}
	does := s.Plan()
	require.Equal(t, evictiontest.Evicted(does), foreseen(fit.Evictions), "a claim of %s", spec.Size)

	for _, e := range does.Evictions {
		s.View.Volumes = slices.DeleteFunc(s.View.Volumes, func(v inventory.Volume) bool { return v.Name == e.Volume.Name })
		s.PoolNamed("flexlvm").Free += e.Volume.Allocated
	}
	s.View.Volumes = append(s.View.Volumes, inventory.Volume{
		Group: "flexlvm", GroupUUID: evictiontest.GroupUUID, Name: "new", UUID: "new", State: volume.Ready, Created: s.View.Now,
		Size: spec.Size, Allocated: spec.Charge(), Cluster: evictiontest.Cluster, Kind: volume.Claim, Shape: spec.Shape(),
	})
	s.PoolNamed("flexlvm").Free -= spec.Charge()
	s.View.Now = s.View.Now.Add(s.Policy.MinAge) // volumes that were released just now may be evicted by then
	require.Equal(t, evictiontest.Evicted(s.Plan()), foreseen(fit.Then), "after a claim of %s", spec.Size)
	return fit
}

// withFailedRemovals adds volumes that could not be removed, and volumes that are evicted whether or not their room is
// needed.
func withFailedRemovals(s *evictiontest.Scene, failed int) *evictiontest.Scene {
	s.Policy.MaxAge = 48 * time.Hour
	s.Volume("ancient", volume.Unreferenced, 3, evictiontest.ReleasedAgo(100*time.Hour))
	s.Volume("at-once", volume.Unreferenced, 3, evictiontest.Immediate, evictiontest.ReleasedAgo(time.Second))
	for i := range failed {
		s.Volume(fmt.Sprintf("doomed_%d", i), volume.Doomed, 2, evictiontest.WithProblem)
	}
	return s
}

// An overview knows that a pool in which two removals have failed evicts no volume for its room.
func TestPlanForeseesFailedRemovals(t *testing.T) {
	always := []string{"Immediate at-once", "MaxAge ancient"}
	for name, scene := range map[string]func(string) *evictiontest.Scene{"pressed": pressed, "unhurried": unhurried} {
		for _, headroom := range []string{"0", "auto", "30Gi"} {
			for failed, stalled := range map[int]bool{1: false, 2: true, 3: true} {
				t.Run(fmt.Sprintf("%s, headroom %s, %d failed", name, headroom, failed), func(t *testing.T) {
					more := false
					for size := range 90 {
						fit := checkForesight(t, withFailedRemovals(scene(headroom), failed), volume.Bytes(size+1)*volume.GiB)
						if fit.Fits {
							require.Subset(t, foreseen(fit.Evictions), always)
							more = more || len(fit.Evictions)+len(fit.Then) > len(always) || !fit.After.IsZero()
						}
						require.True(t, fit.Fits || size > 0)
					}
					require.Equal(t, !stalled, more)
					s := withFailedRemovals(scene(headroom), failed)
					s.View.Now = s.View.Now.Add(s.Policy.MinAge) // the volume that was released last may be evicted, too
					next := overview.NextOf([]flexlvmv1.NodeStorage{reported(s)}, 3, s.View.Now)
					require.Subset(t, foreseen(next), always)
					require.Equal(t, !stalled, len(next) > len(always))
				})
			}
		}
	}
}

func foreseen(all []overview.Eviction) []string {
	out := []string{}
	for _, e := range all {
		out = append(out, string(e.Reason)+" "+e.Name)
	}
	return out
}

func TestReleasedAreReported(t *testing.T) {
	storage := reported(pressed("0"))
	got := map[string]string{}
	for _, r := range storage.Status.Released {
		got[r.Name] = fmt.Sprint(r.EvictionOrder, r.Kept)
	}
	require.Equal(t, map[string]string{
		"old": "1", "newer": "2", "last": "3", "young": "0TooYoung", "busy": "0InUse", "kept": "0Retained", "odd": "0Problem",
	}, got)
	require.Equal(t, "young", storage.Status.Released[0].Name, "the newest first")
	require.EqualValues(t, 7, storage.Status.ReleasedCount)
	require.EqualValues(t, 70, storage.Status.EvictionPolicy.HighThresholdPercent)

	var next []string
	for _, e := range overview.NextOf([]flexlvmv1.NodeStorage{storage}, 2, evictiontest.Now) {
		next = append(next, e.Name)
	}
	require.Equal(t, []string{"old", "newer"}, next)
}

// However many volumes are released, the list is bounded, and contains those that are evicted next and those that
// were released last.
func TestReleasedAreBounded(t *testing.T) {
	var all []eviction.Released
	for pool := range 12 {
		for i := range 100 {
			v := inventory.Volume{Group: volume.Group(fmt.Sprintf("pool-%d", pool)), Name: volume.Name(fmt.Sprintf("v-%d", i)), Released: evictiontest.HoursAgo(float64(200 - i))}
			all = append(all, eviction.Released{Volume: v, Order: i + 1})
		}
	}
	require.Len(t, releasedStatus(all, unknown, nil, nil), maxReleased)
	few := releasedStatus(all[:100], unknown, nil, nil)
	require.Len(t, few, lastReleased+firstToGo)
	require.Equal(t, "v-99", few[0].Name)
	require.Equal(t, "v-0", few[len(few)-1].Name)
	require.Empty(t, releasedStatus(nil, unknown, nil, nil))
}

func unknown(string) *flexlvmv1.ReleasedOrigin { return nil }

// However long the names are, a NodeStorage stays small. The origin of a volume that an earlier process has reported
// is kept, unless another volume now has the name.
func TestReleasedAreSmall(t *testing.T) {
	long := strings.Repeat("x", 253)
	var all []eviction.Released
	for i := range 100 {
		v := inventory.Volume{Group: volume.Group(long[:100]), Name: volume.Name(fmt.Sprintf("%s-%d", long[:100], i)), Namespace: long[:63], FS: fmt.Sprintf("fs-%d", i), UUID: fmt.Sprint(i)}
		all = append(all, eviction.Released{Volume: v, Order: i%firstToGo + 1})
	}
	known := func(uuid string) *flexlvmv1.ReleasedOrigin {
		return &flexlvmv1.ReleasedOrigin{Claim: long[:250] + uuid, StorageClassName: long}
	}
	first := releasedStatus(all, known, nil, nil)
	written, err := json.Marshal(first)
	require.NoError(t, err)
	require.Less(t, len(written), 48<<10)
	require.Greater(t, len(first), 30)

	again := releasedStatus(all, unknown, first, nil)
	require.Equal(t, first[0].Origin, again[0].Origin)
	all[0].Volume.FS = "another"
	again = releasedStatus(all, unknown, first, nil)
	require.Equal(t, "another", again[0].FilesystemUUID)
	require.Nil(t, again[0].Origin)
}

// Released volumes stay on the list while their pool cannot be read.
func TestReleasedOfAPoolThatIsNotSeen(t *testing.T) {
	pools := []inventory.Pool{{Name: "g"}, {Name: "g:seen", Directories: &inventory.DirectoryPool{Known: true}}, {Name: "g:not", Directories: &inventory.DirectoryPool{}}}
	was := []flexlvmv1.ReleasedVolume{{Pool: "g", Name: "a"}, {Pool: "g:seen", Name: "b"}, {Pool: "g:not", Name: "c"}}
	require.Equal(t, []flexlvmv1.ReleasedVolume{{Pool: "g:not", Name: "c", Kept: flexlvmv1.KeptProblem}}, releasedUnseen(inventory.Inventory{Pools: pools}, was))
}

// Released volumes stay on the list while their volume group is not seen, as while a disk is late, and count as
// seen if the group was renamed.
func TestReleasedOfAGroupThatIsNotSeen(t *testing.T) {
	was := []flexlvmv1.ReleasedVolume{
		{Pool: "g", Name: "a", FilesystemUUID: "fs-a", EvictionOrder: 1, Origin: &flexlvmv1.ReleasedOrigin{Claim: "data"}},
		{Pool: "g", Name: "b", Kept: flexlvmv1.KeptRetained},
		{Pool: "g/thin", Name: "c", FilesystemUUID: "fs-c", Kept: flexlvmv1.KeptInUse},
		{Pool: "g:dirs", Name: "d", FilesystemUUID: "fs-d", Kept: flexlvmv1.KeptRemoving},
	}
	without := inventory.Inventory{Pools: []inventory.Pool{{Name: "other"}}}
	kept := releasedUnseen(without, was)
	require.Len(t, kept, 4)
	require.Equal(t, flexlvmv1.ReleasedVolume{Pool: "g", Name: "a", FilesystemUUID: "fs-a", Kept: flexlvmv1.KeptProblem, Origin: was[0].Origin}, kept[0], "it is not evicted next")
	require.Equal(t, was[1], kept[1], "a person still has to give it up")
	for _, v := range kept[2:] {
		require.Equal(t, flexlvmv1.KeptProblem, v.Kept, "%s is not in use or being removed as long as it is not seen", v.Name)
	}
	require.Equal(t, kept, releasedUnseen(inventory.Inventory{}, kept))

	renamed := without
	renamed.Volumes = []inventory.Volume{{Group: "other", Name: "a", FS: "fs-a"}, {Group: "other", Name: "b"}}
	require.Equal(t, kept[1:], releasedUnseen(renamed, kept))

	again := inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}}}
	require.Empty(t, releasedUnseen(again, kept), "what the group lacks is gone")
}

// However many volumes are released beside a pool that cannot be read, and however many pools have that pool's name,
// the list stays within the API server's limit and keeps all volumes of that pool.
func TestReleasedAreBoundedBesideAPoolThatIsNotSeen(t *testing.T) {
	f := observation{inventory: inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}, {Name: "g:not", Directories: &inventory.DirectoryPool{}}, {Name: "g:not", Directories: &inventory.DirectoryPool{}}}}}
	for i := range 200 {
		v := inventory.Volume{Group: "g", Name: volume.Name(fmt.Sprintf("v-%d", i)), FS: fmt.Sprintf("fs-%d", i), Released: evictiontest.HoursAgo(float64(i))}
		f.inventory.Volumes = append(f.inventory.Volumes, v)
		f.result.Released = append(f.result.Released, eviction.Released{Volume: v, Order: i%firstToGo + 1})
	}
	was := flexlvmv1.NodeStorageStatus{}
	for i := range 60 {
		was.Released = append(was.Released, flexlvmv1.ReleasedVolume{Pool: "g:not", Name: fmt.Sprintf("d-%d", i), FilesystemUUID: fmt.Sprintf("d-%d", i), Kept: flexlvmv1.KeptProblem})
	}
	unseen := was.Released
	for range 5 {
		was = statusOf(was, f, report{origin: unknown, whyNotCreated: func(string) string { return "" }})
		require.Len(t, was.Released, maxReleased)
		require.Equal(t, unseen, was.Released[40:])
	}

	// Only one of two pools with the same name is readable.
	f.inventory.Pools = f.inventory.Pools[:2]
	f.inventory.Pools[1].Name, f.result.Released = "g", f.result.Released[:3]
	was = flexlvmv1.NodeStorageStatus{}
	for range 5 {
		was = statusOf(was, f, report{origin: unknown, whyNotCreated: func(string) string { return "" }})
		require.Len(t, was.Released, 3)
	}
}

// If names are so long that the volumes of an unreadable pool leave few places on the list, or none, overview.Find
// returns no volume of that pool as the last one of a claim: a later one may be missing from the list.
func TestUndeleteBesideAPoolThatIsNotSeen(t *testing.T) {
	long := strings.Repeat("x", 200)
	f := observation{inventory: inventory.Inventory{Pools: []inventory.Pool{{Name: "g"}, {Name: "g:not", Directories: &inventory.DirectoryPool{}}}}}
	for _, p := range f.inventory.Pools {
		one := eviction.PoolResult{Pool: p}
		if p.VolumesUnknown() {
			one.Closed = "its device is not there"
		}
		f.result.Pools = append(f.result.Pools, one)
	}
	for i := range 60 {
		v := inventory.Volume{Group: "g", Name: volume.Name(fmt.Sprintf("%s-%d", long[:100], i)), FS: fmt.Sprintf("fs-%d", i), UUID: fmt.Sprintf("claim-%d", i), Namespace: "shop", Released: evictiontest.HoursAgo(float64(i))}
		f.result.Released = append(f.result.Released, eviction.Released{Volume: v, Kept: eviction.KeptRetained})
	}
	origin := func(uuid string) *flexlvmv1.ReleasedOrigin { return &flexlvmv1.ReleasedOrigin{Claim: uuid} }
	for unseen, seen := range map[int]bool{55: true, 75: false} {
		was := flexlvmv1.NodeStorageStatus{}
		for i := range unseen {
			was.Released = append(was.Released, flexlvmv1.ReleasedVolume{
				Pool: "g:not", Name: fmt.Sprintf("%s-%d", long, i), Namespace: "shop", FilesystemUUID: fmt.Sprintf("d-%d", i),
				Released: second(evictiontest.HoursAgo(float64(i + 100))), Kept: flexlvmv1.KeptProblem, Origin: &flexlvmv1.ReleasedOrigin{Claim: fmt.Sprintf("%s-%d", long, i)},
			})
		}
		is := statusOf(was, f, report{origin: origin, whyNotCreated: func(string) string { return "" }})
		require.Equal(t, was.Released, is.Released[len(is.Released)-unseen:])
		require.Equal(t, seen, len(is.Released) > unseen)
		require.Less(t, len(is.Released), lastReleased+unseen)
		for i := range unseen {
			_, err := overview.Find([]flexlvmv1.NodeStorage{{Status: is}}, overview.Wanted{Namespace: "shop", Claim: fmt.Sprintf("%s-%d", long, i)})
			require.ErrorContains(t, err, "released volumes that it does not list", i)
		}
	}
}
