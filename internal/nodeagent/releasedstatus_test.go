package nodeagent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

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
