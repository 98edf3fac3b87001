package node

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// plain returns a logical volume that a person has created.
func plain() lvm.LogicalVolume {
	return lvm.LogicalVolume{
		Group: "data", Name: "wiki", Size: volume.GiB, Attr: "-wi-a-----", Active: true,
		Shape: volume.Shape{Layout: volume.Linear},
	}
}

func TestMayAdopt(t *testing.T) {
	require.NoError(t, checkAdoptable(plain()))
	for attr, layout := range map[string]volume.Layout{"-wi-a-----": volume.Striped, "rwi-a-r---": volume.Raid1, "Rwi-a-r---": volume.Raid1} {
		lv := plain()
		lv.Attr, lv.Shape.Layout = attr, layout
		require.NoError(t, checkAdoptable(lv), attr)
	}
	for says, change := range map[string]func(lv *lvm.LogicalVolume){
		"data/wiki is a thin pool": func(lv *lvm.LogicalVolume) { lv.Pool, lv.Attr = true, "twi-a-tz--" },
		"is in thin pool pool":     func(lv *lvm.LogicalVolume) { lv.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "pool"} },
		"has snapshots":            func(lv *lvm.LogicalVolume) { lv.HasSnapshots, lv.Attr = true, "owi-a-s---" },
		"is a snapshot of another": func(lv *lvm.LogicalVolume) { lv.Attr = "swi-a-s---" },
		"(lv_attr Cwi-a-C---)":     func(lv *lvm.LogicalVolume) { lv.Attr, lv.Shape = "Cwi-a-C---", volume.Shape{} },
		"(lv_attr mwi-a-m---)":     func(lv *lvm.LogicalVolume) { lv.Attr, lv.Shape = "mwi-a-m---", volume.Shape{} },
		"(lv_attr rwi-a-r---)":     func(lv *lvm.LogicalVolume) { lv.Attr = "rwi-a-r---" },
		"is read-only":             func(lv *lvm.LogicalVolume) { lv.Attr = "-ri-a-----" },
		"LVM skips the activation": func(lv *lvm.LogicalVolume) { lv.Skipped, lv.Attr = true, "-wi-a----k" },
		`LVM says "partial" of it`: func(lv *lvm.LogicalVolume) { lv.Health = "partial" },
		"unless another host uses it, `lvchange --activate y data/wiki": func(lv *lvm.LogicalVolume) { lv.Active = false },
	} {
		lv := plain()
		change(&lv)
		err := checkAdoptable(lv)
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, ErrRefused)
	}
	lv := plain()
	lv.Open = true
	require.ErrorIs(t, checkAdoptable(lv), ErrInUse)
}

func TestUnfinishedAdoption(t *testing.T) {
	a := Adoption{Group: "data", Name: "wiki", Namespace: "shop", Cluster: "c"}
	tags := volume.Tags{
		State: volume.Retained, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Size: volume.GiB, Namespace: "shop", Cluster: "c", Kind: volume.Claim, Adopting: true,
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone,
	}
	lv := plain()
	lv.Tags = []string{"theirs", "flexlvm-is-not-this"}
	got, err := unfinishedAdoption(lv, a)
	require.NoError(t, err)
	require.Nil(t, got)
	lv.Tags = tags.Strings()
	got, err = unfinishedAdoption(lv, a)
	require.NoError(t, err)
	require.Equal(t, tags, *got)

	for says, change := range map[string]func(*volume.Tags){
		`begun for namespace "bank"`:      func(t *volume.Tags) { t.Namespace = "bank" },
		`of cluster "other"`:              func(t *volume.Tags) { t.Cluster = "other" },
		"is a flexlvm volume already":     func(t *volume.Tags) { t.Adopting = false },
		"ready and of namespace \"shop\"": func(t *volume.Tags) { t.Adopting, t.State = false, volume.Ready },
		"are invalid":                     func(t *volume.Tags) { t.State = volume.Ready },
	} {
		changed := tags
		change(&changed)
		lv.Tags = changed.Strings()
		_, err := unfinishedAdoption(lv, a)
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, ErrRefused)
	}
	lv.Tags = []string{"flexlvm.state=ready"}
	_, err = unfinishedAdoption(lv, a)
	require.ErrorContains(t, err, "does not carry the tag", "half of our tags are no invitation")
}

// After an adoption was killed, a person may have changed the UUID of the file system, or created another
// file system; the tags of both together would make no sense.
func TestAdoptionGoesOnWithTheFileSystemThatIsThere(t *testing.T) {
	was := volume.Tags{
		State: volume.Retained, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Size: volume.GiB, Namespace: "shop", Cluster: "c", Kind: volume.Claim, Adopting: true,
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone,
	}
	del, add := adoptingTags(nil, was)
	require.Empty(t, del)
	require.Equal(t, was.Strings(), add)
	del, add = adoptingTags(&was, was)
	require.Empty(t, del)
	require.Empty(t, add)
	for _, change := range []func(*volume.Tags){
		func(t *volume.Tags) { t.FS = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11" },
		func(t *volume.Tags) { t.FSType = volume.Ext4 },
		func(t *volume.Tags) { t.Size = 2 * volume.GiB },
		func(t *volume.Tags) {
			t.FS, t.FSType, t.Size = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", volume.Ext4, 2*volume.GiB
		},
	} {
		for _, back := range []bool{false, true} {
			from, to := was, was
			change(&to)
			if back {
				from, to = to, from
			}
			del, add := adoptingTags(&from, to)
			left := slices.DeleteFunc(from.Strings(), func(tag string) bool { return slices.Contains(del, tag) })
			got, err := volume.ParseTags(append(left, add...))
			require.NoError(t, err)
			require.Equal(t, to, got)
		}
	}
}

func TestMayGrow(t *testing.T) {
	tags := volume.Tags{Size: volume.GiB}
	require.NoError(t, checkGrowable(plain(), tags, 2*volume.GiB))
	tags.Fixed = true
	require.NoError(t, checkGrowable(plain(), tags, volume.GiB), "kubelet asks for what it has")
	err := checkGrowable(plain(), tags, volume.GiB+1)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "data/wiki stays at 1073741824 bytes")
}

// A snapshot, and a full copy of it, hold the file system of their source.
func TestCopyOfAFixedVolumeIsFixed(t *testing.T) {
	of := sourceTags()
	of.Fixed = true
	tags, err := copyTags(volume.Spec{Kind: volume.Snapshot, Size: volume.GiB}, of)
	require.NoError(t, err)
	require.True(t, tags.Fixed)
}

// An empty volume never replaces one that was disowned.
func TestDisownedVolumeCountsAsServed(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return now }}, noPrograms(t))
	require.NoError(t, err)
	lv := plain()
	lv.UUID = "some-uuid"
	tags := sourceTags()
	tags.State = volume.Retained
	require.NoError(t, e.recordDisowned(lv, tags))
	now = now.Add(2 * tombstoneLife)
	for _, held := range []volume.Name{lv.Name, "other"} {
		e.expireTombstones(lv.Group, held)
		served, err := e.records.hasRecordOf(lv.Group, lv.Name)
		require.NoError(t, err)
		require.True(t, served)
	}
	_, late := e.records.blockedByTombstone(lv.Group, lv.Name, now)
	require.False(t, late, "it was not removed, so the call is not told that it was")
}

func TestMayDisown(t *testing.T) {
	tags := volume.Tags{State: volume.Retained, Kind: volume.Claim}
	require.NoError(t, checkDisownable(plain(), tags))
	for says, change := range map[string]func(*volume.Tags){
		"is of kind dataset":                   func(t *volume.Tags) { t.Kind = volume.Dataset },
		"never finished":                       func(t *volume.Tags) { t.Clone = "x" },
		"data/wiki is ready: only one that is": func(t *volume.Tags) { t.State = volume.Ready },
		"data/wiki is unreferenced":            func(t *volume.Tags) { t.State = volume.Unreferenced },
	} {
		changed := tags
		change(&changed)
		require.ErrorContains(t, checkDisownable(plain(), changed), says)
	}
	ready := tags
	ready.State = volume.Ready
	require.NotContains(t, checkDisownable(plain(), ready).Error(), "flexlvm volumes retain", "its PersistentVolume would outlive it")
	ready.State = volume.Unreferenced
	require.ErrorContains(t, checkDisownable(plain(), ready), "`flexlvm volumes retain wiki` first")
	for says, change := range map[string]func(*lvm.LogicalVolume){
		"has copy-on-write snapshots": func(lv *lvm.LogicalVolume) { lv.HasSnapshots = true },
		"is a snapshot of other":      func(lv *lvm.LogicalVolume) { lv.Origin = "other" },
	} {
		lv := plain()
		change(&lv)
		err := checkDisownable(lv, tags)
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, ErrRefused)
	}
	lv := plain()
	lv.Open = true
	require.ErrorIs(t, checkDisownable(lv, tags), ErrInUse)
}

func TestHalfAnAdoptionChangesToNoOtherState(t *testing.T) {
	tags := volume.Tags{State: volume.Retained, Adopting: true}
	for _, to := range []volume.State{volume.Ready, volume.Unreferenced} {
		require.ErrorContains(t, checkStateChange(plain(), tags, to), "the adoption of volume data/wiki is not finished")
	}
	require.NoError(t, checkStateChange(plain(), tags, volume.Retained))
}

// LVM takes a number without a unit for MiB.
func TestAdviceToExtendATooSmallVolume(t *testing.T) {
	lv := plain()
	lv.Size = volume.DefaultExtent
	_, _, err := tagsOfAdopted(candidate{lv: lv}, Adoption{Group: "data", Name: "wiki"}, "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", volume.XFS)
	require.ErrorContains(t, err, "the least that a volume with xfs takes is more")
	require.Regexp(t, "`lvextend --size [0-9]+b data/wiki`", err.Error())
}
