package overview_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// deleted makes a node's first released volume the claim's, released after the node's second one.
func deleted(claim string) func(*flexlvmv1.NodeStorageStatus) {
	return func(s *flexlvmv1.NodeStorageStatus) {
		s.Released[0].FilesystemUUID = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
		s.Released[0].Origin = &flexlvmv1.ReleasedOrigin{Claim: claim}
		s.Released[1].Released = metav1.NewTime(s.Released[0].Released.Add(-time.Second))
	}
}

func TestFind(t *testing.T) {
	find := func(w overview.Wanted, all ...flexlvmv1.NodeStorage) (string, error) {
		got, err := overview.Find(all, w)
		return got.Node + "/" + got.Released.Name, err
	}
	a, b := node("a", deleted("data")), node("b", deleted("data"))
	got, err := find(overview.Wanted{Namespace: "shop", Claim: "data"}, a)
	require.NoError(t, err)
	require.Equal(t, "a/released-0", got)

	_, err = find(overview.Wanted{Namespace: "shop", Claim: "data"}, a, b)
	require.ErrorContains(t, err, "there are 2 released volumes of claim shop/data; select one with --volume or --node:\n  --volume released-0 (node a, claim data, 8 GiB, unreferenced since 2026-11-19 22:00:00Z)")
	got, err = find(overview.Wanted{Namespace: "shop", Claim: "data", Node: "b"}, a, b)
	require.NoError(t, err)
	require.Equal(t, "b/released-0", got)
	got, err = find(overview.Wanted{Namespace: "shop", Claim: "other", Volume: "released-0"}, a)
	require.NoError(t, err, "the claim may get another name")
	require.Equal(t, "a/released-0", got)

	for _, w := range []overview.Wanted{{Namespace: "thief", Claim: "data"}, {Namespace: "thief", Volume: "released-0"}} {
		_, err = find(w, a)
		require.ErrorContains(t, err, "no node reports a released volume")
		require.NotContains(t, err.Error(), "released-1", "what is another namespace's is not named")
	}
	for _, search := range []func([]flexlvmv1.NodeStorage, overview.Wanted) (overview.Candidate, error){overview.Find, overview.FindAny} {
		_, err = search([]flexlvmv1.NodeStorage{node("a", deleted(""))}, overview.Wanted{Namespace: "shop"})
		require.ErrorContains(t, err, "neither a claim nor a volume is named", "and not the volume whose claim is not known")
	}
	a.Status.ReleasedCount = 9
	_, err = find(overview.Wanted{Namespace: "shop", Claim: "gone"}, a)
	require.ErrorContains(t, err, "The nodes report these released volumes of the namespace:\n  --volume released-")
	require.ErrorContains(t, err, "7 more released volumes are not listed")
	_, err = find(overview.Wanted{Namespace: "shop", Volume: "released-1"}, a)
	require.ErrorContains(t, err, "no node reports", "its file system is not known")
}

// A node that has lost the contents of PersistentVolumes lists volumes without their claims. A later
// one of these may be the wanted one, so the search is ambiguous.
func TestFindBesideVolumesOfUnknownClaims(t *testing.T) {
	w := overview.Wanted{Namespace: "shop", Claim: "data"}
	for name, tt := range map[string]struct {
		change func(*flexlvmv1.ReleasedVolume)
		w      overview.Wanted
		sure   bool
	}{
		"later":                    {change: func(*flexlvmv1.ReleasedVolume) {}, w: w},
		"in the same second":       {change: func(r *flexlvmv1.ReleasedVolume) { r.Released = metav1.NewTime(now.Add(-5 * time.Hour)) }, w: w},
		"earlier":                  {change: func(r *flexlvmv1.ReleasedVolume) { r.Released = metav1.NewTime(now.Add(-6 * time.Hour)) }, w: w, sure: true},
		"of another claim":         {change: func(r *flexlvmv1.ReleasedVolume) { r.Origin = &flexlvmv1.ReleasedOrigin{Claim: "logs"} }, w: w, sure: true},
		"of another namespace":     {change: func(r *flexlvmv1.ReleasedVolume) { r.Namespace = "team" }, w: w, sure: true},
		"a replica of a dataset":   {change: func(r *flexlvmv1.ReleasedVolume) { r.Kind = "dataset" }, w: w, sure: true},
		"later, on another node":   {change: func(*flexlvmv1.ReleasedVolume) {}, w: overview.Wanted{Namespace: "shop", Claim: "data", Node: "b"}, sure: true},
		"the volume is named":      {change: func(*flexlvmv1.ReleasedVolume) {}, w: overview.Wanted{Namespace: "shop", Volume: "released-0", Node: "a"}, sure: true},
		"later, and none is known": {change: func(*flexlvmv1.ReleasedVolume) {}, w: overview.Wanted{Namespace: "shop", Claim: "gone"}},
	} {
		a := node("a", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
			s.Released[1].Released = metav1.NewTime(now)
			tt.change(&s.Released[1])
		})
		all := []flexlvmv1.NodeStorage{a}
		if tt.w.Node == "b" {
			all = append(all, node("b", deleted("data")))
		}
		found, err := overview.Find(all, tt.w)
		if tt.sure {
			require.NoError(t, err, name)
			require.Equal(t, "released-0", found.Released.Name, name)
			continue
		}
		require.ErrorContains(t, err, "--volume released-0 (node a, claim data", name)
		require.ErrorContains(t, err, "--volume released-1 (node a, claim unknown", name)
	}
}

// A volume in a volume group that its node does not see now is not brought back, nor is an earlier one in its place.
func TestFindInAGroupThatIsNotSeen(t *testing.T) {
	w := overview.Wanted{Namespace: "shop", Claim: "data"}
	late := node("a", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
		unseen := s.Released[0]
		unseen.Pool, unseen.Name, unseen.FilesystemUUID = "late/thin", "later", "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
		unseen.Released = metav1.NewTime(now)
		s.Released = append(s.Released, unseen)
		s.ReleasedCount++
	})
	all := []flexlvmv1.NodeStorage{late}
	_, err := overview.Find(all, w)
	require.ErrorContains(t, err, "there are 2 released volumes of claim shop/data; select one with --volume or --node:\n  --volume later (node a, claim data, 8 GiB, unreferenced since 2026-11-20 03:00:00Z, in volume group late that the node does not see now)")
	w.Volume = "released-0"
	found, err := overview.Find(all, w)
	require.NoError(t, err, "it was named")
	require.Equal(t, "released-0", found.Released.Name)
	w.Volume = "later"
	for _, find := range []func([]flexlvmv1.NodeStorage, overview.Wanted) (overview.Candidate, error){overview.Find, overview.FindAny} {
		_, err = find(all, w)
		require.ErrorContains(t, err, "node a does not see volume group late now, which has this volume:\n  --volume later")
	}
	late.Status.Released = late.Status.Released[1:]
	w.Volume = ""
	_, err = overview.Find(all, w)
	require.ErrorContains(t, err, "--volume later")
	late.Status.Pools = append(late.Status.Pools, flexlvmv1.Pool{Name: "late", UUID: "of-late"}, flexlvmv1.Pool{Name: "late/thin"})
	w.Volume = "later"
	found, err = overview.Find([]flexlvmv1.NodeStorage{late}, w)
	require.NoError(t, err, "the group is seen again")
	require.Equal(t, "of-late", found.GroupUUID)
}

// A volume whose disks were moved to another node is found there, although its former node still lists it.
func TestFindOfAGroupThatWasMoved(t *testing.T) {
	former := node("a", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
		s.Released = s.Released[:1]
		s.Released[0].Pool, s.ReleasedCount = "moved", 1
	})
	asNew := func(r *flexlvmv1.ReleasedVolume) { r.Origin, r.Released = nil, r.Created } // the records stayed on the former node
	named, claimed := overview.Wanted{Namespace: "shop", Volume: "released-0"}, overview.Wanted{Namespace: "shop", Claim: "data"}
	for name, tt := range map[string]struct {
		change func(*flexlvmv1.ReleasedVolume)
		w      overview.Wanted
		err    string
	}{
		"the volume is named":              {func(*flexlvmv1.ReleasedVolume) {}, named, ""},
		"the claim is named":               {func(*flexlvmv1.ReleasedVolume) {}, claimed, ""},
		"the node does not know its claim": {asNew, named, ""},
		"and the claim is named":           {asNew, claimed, "\n  --volume released-0 (node b, claim unknown"},
		"created at another time":          {func(r *flexlvmv1.ReleasedVolume) { r.Created = metav1.NewTime(r.Created.Add(time.Hour)) }, claimed, "there are 2 released volumes"},
		"of another file system":           {func(r *flexlvmv1.ReleasedVolume) { r.FilesystemUUID = "another" }, claimed, "there are 2 released volumes"},
		"released earlier":                 {func(r *flexlvmv1.ReleasedVolume) { r.Released = metav1.NewTime(r.Released.Add(-time.Second)) }, claimed, "there are 2 released volumes"},
		"of another claim since":           {func(r *flexlvmv1.ReleasedVolume) { r.Origin.Claim = "other" }, claimed, "node a does not see volume group moved now"},
		"seen on neither node":             {func(r *flexlvmv1.ReleasedVolume) { r.Pool = "moved" }, claimed, "there are 2 released volumes"},
	} {
		is := node("b", deleted("data"))
		tt.change(&is.Status.Released[0])
		found, err := overview.Find([]flexlvmv1.NodeStorage{former, is}, tt.w)
		if tt.err != "" {
			require.ErrorContains(t, err, tt.err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, "b", found.Node, name)
	}

	earlier := node("c", deleted("data"))
	earlier.Status.Released[0].FilesystemUUID, earlier.Status.Released[0].Name = "another", "earlier"
	earlier.Status.Released[0].Released = metav1.NewTime(former.Status.Released[0].Released.Add(-time.Hour))
	is := node("b", deleted("data"))
	asNew(&is.Status.Released[0])
	_, err := overview.Find([]flexlvmv1.NodeStorage{former, is, earlier}, claimed)
	require.ErrorContains(t, err, "may have had a later volume than the one that was found")

	// The former node is not there any more, and the volume was created before the other was released.
	is.Status.Released[0].Created = metav1.NewTime(earlier.Status.Released[0].Released.Add(-time.Minute))
	asNew(&is.Status.Released[0])
	_, err = overview.Find([]flexlvmv1.NodeStorage{is, earlier}, claimed)
	require.ErrorContains(t, err, "may have had a later volume than the one that was found")

	// The disks were moved back.
	back := node("b", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
		s.Released, s.ReleasedCount = s.Released[:1], 1
		s.Released[0].Pool, s.Released[0].Origin = "moved", nil
	})
	_, err = overview.Find([]flexlvmv1.NodeStorage{node("a", deleted("data")), back}, claimed)
	require.NoError(t, err)

	// The volume that was moved back is not released any more. The entry that is left may be a later volume of any claim.
	earlier.Status.Released, earlier.Status.ReleasedCount = earlier.Status.Released[:1], 1
	_, err = overview.Find([]flexlvmv1.NodeStorage{earlier, back}, claimed)
	require.EqualError(t, err, "claim shop/data may have had a later volume than the one that was found, because volumes whose claim is not known were released in volume group moved of node b; "+
		"the report lists them although the group is not seen now. --volume earlier selects the volume that was found. If the group will never be back there, delete its entries from status.released "+
		"(kubectl edit nodestorage NODE --subresource=status; docs/undelete.md: a volume group that is not seen). The volume that was found:\n"+
		"  --volume earlier (node c, claim data, 8 GiB, unreferenced since 2026-11-19 21:00:00Z)\nVolumes whose claim is not known:\n"+
		"  --volume released-0 (node b, claim unknown, 8 GiB, unreferenced since 2026-11-19 22:00:00Z, in volume group moved that the node does not see now)")
	seen := node("d", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) { s.Released[0].Origin = nil })
	_, err = overview.Find([]flexlvmv1.NodeStorage{earlier, back, seen}, claimed)
	require.ErrorContains(t, err, "because the claims of some released volumes are not known; select one with --volume")
}

// Nodes may have orphans with the same name, which may also be the name of another node's released
// volume: the search is ambiguous and does not guess.
func TestFindAny(t *testing.T) {
	find := func(w overview.Wanted, all ...flexlvmv1.NodeStorage) (string, error) {
		got, err := overview.FindAny(all, w)
		return got.Node + "/" + got.Released.Name, err
	}
	const fs = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
	orphan := func(name string) func(*flexlvmv1.NodeStorageStatus) {
		return func(s *flexlvmv1.NodeStorageStatus) {
			s.Orphans = []flexlvmv1.Orphan{{Pool: "flexlvm", Name: name, State: "ready", Namespace: "shop", FilesystemUUID: fs}}
		}
	}
	a, b := node("a", orphan("ds-1")), node("b", orphan("ds-1"))
	got, err := find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, a)
	require.NoError(t, err)
	require.Equal(t, "a/ds-1", got)
	late := node("a", orphan("ds-1"), func(s *flexlvmv1.NodeStorageStatus) { s.Orphans[0].Pool = "late" })
	_, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, late)
	require.ErrorContains(t, err, "node a does not see volume group late now")
	_, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, a, b)
	require.ErrorContains(t, err, "select one with")
	require.ErrorContains(t, err, "(node b, ")
	got, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1", Node: "b"}, a, b)
	require.NoError(t, err)
	require.Equal(t, "b/ds-1", got)

	// Its disks were moved to another node, which lists it as an orphan, too, or as released.
	got, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, late, b)
	require.NoError(t, err)
	require.Equal(t, "b/ds-1", got)
	since := node("b", func(s *flexlvmv1.NodeStorageStatus) {
		s.Released = []flexlvmv1.ReleasedVolume{{Pool: "flexlvm", Name: "ds-1", State: "unreferenced", Namespace: "shop", FilesystemUUID: fs}}
	})
	got, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, late, since)
	require.NoError(t, err)
	require.Equal(t, "b/ds-1", got)
	// A released volume is not on the other node, as long as that lists an orphan.
	before := node("a", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
		s.Released, s.ReleasedCount = []flexlvmv1.ReleasedVolume{{Pool: "late", Name: "ds-1", State: "unreferenced", Namespace: "shop", FilesystemUUID: fs}}, 1
	})
	_, err = find(overview.Wanted{Namespace: "shop", Volume: "ds-1"}, before, b)
	require.ErrorContains(t, err, "select one with")

	one, other, third := node("a", deleted("data")), node("b", deleted("data")), node("c", orphan("released-0"))
	for _, all := range [][]flexlvmv1.NodeStorage{{one, third}, {one, other, third}} {
		_, err = find(overview.Wanted{Namespace: "shop", Volume: "released-0"}, all...)
		require.ErrorContains(t, err, "select one with")
	}
	ill := node("a", deleted("data"), orphan("released-0"))
	ill.Status.Orphans[0].FilesystemUUID = ill.Status.Released[0].FilesystemUUID
	got, err = find(overview.Wanted{Namespace: "shop", Volume: "released-0"}, ill)
	require.NoError(t, err, "it is one volume")
	require.Equal(t, "a/released-0", got)
	_, err = find(overview.Wanted{Namespace: "thief", Volume: "ds-1"}, a)
	require.ErrorContains(t, err, "no node reports")
	_, err = find(overview.Wanted{Namespace: "shop", Claim: "ds-1"}, a)
	require.ErrorContains(t, err, "no node reports", "an orphan is named by its volume")
}

// An orphaned snapshot is found for undelete, too.
func TestFindAnySnapshot(t *testing.T) {
	a := node("a", func(s *flexlvmv1.NodeStorageStatus) {
		s.Orphans = []flexlvmv1.Orphan{{Pool: "flexlvm", Name: "snap-1", Kind: "snapshot", State: "ready", Namespace: "shop", FilesystemUUID: "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"}}
	})
	got, err := overview.FindAny([]flexlvmv1.NodeStorage{a}, overview.Wanted{Namespace: "shop", Volume: "snap-1"})
	require.NoError(t, err)
	require.ErrorContains(t, undelete.CheckRestorable(got.Inventory("cluster")), "is a snapshot whose VolumeSnapshot is gone")
}

func TestWhatComesBack(t *testing.T) {
	s := node("a", deleted("data"), func(s *flexlvmv1.NodeStorageStatus) {
		r := &s.Released[0]
		r.Layout, r.Stripes, r.StripeSizeKiB, r.Wipe, r.FullSize = "striped", 3, 128, "zero", resource.MustParse("9Gi")
		*r.Origin = flexlvmv1.ReleasedOrigin{Claim: "data", StorageClassName: "fast", Inodes: 5, OverprovisionRatio: "1.5", OnNodeLoss: "release", IOLimits: "riops=7", Trim: "weekly", MountOptions: []string{"noatime"}, Door: "csi"}
	})
	found, err := overview.Find([]flexlvmv1.NodeStorage{s}, overview.Wanted{Namespace: "shop", Claim: "data"})
	require.NoError(t, err)
	v := found.Inventory("here")
	require.Equal(t, volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 128}, v.Shape)
	require.Equal(t, 9*volume.GiB, v.AllocatedWhenFull)
	require.Equal(t, volume.WipeZero, v.Wipe)
	require.Equal(t, ledgertest.GroupUUID, v.GroupUUID)
	require.Equal(t, "here", v.Cluster)
	w, err := found.Request()
	require.NoError(t, err)
	require.Equal(t, "1.5", w.Ratio.String())
	require.EqualValues(t, 7, w.IOLimits.ReadIOPS)
	require.Equal(t, volume.TrimWeekly, w.Trim)
	require.Equal(t, []volume.MountOption{volume.NoAtime}, w.MountOptions)
	require.Equal(t, "fast", w.Class)

	found.Released.Origin.IOLimits = "nonsense"
	_, err = found.Request()
	require.Error(t, err)
	found.Released.Origin.IOLimits, found.Released.Origin.Trim = "", "nonsense"
	_, err = found.Request()
	require.ErrorContains(t, err, `flexlvm.io/trim "nonsense"`)
}

func TestProvenance(t *testing.T) {
	created := metav1.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC)
	released := metav1.Date(2026, 11, 20, 18, 2, 11, 0, time.UTC)
	for name, test := range map[string]struct {
		of   flexlvmv1.ReleasedVolume
		want string
	}{
		"released":                {flexlvmv1.ReleasedVolume{State: "unreferenced", Created: created, Released: released}, "released 2026-11-20 18:02:11Z, on node node-2"},
		"retained":                {flexlvmv1.ReleasedVolume{State: "retained", Created: created, Released: released}, "released 2026-11-20 18:02:11Z, on node node-2"},
		"time of release unknown": {flexlvmv1.ReleasedVolume{State: "unreferenced", Created: created, Released: created}, "on node node-2"},
		"orphan":                  {flexlvmv1.ReleasedVolume{State: "ready", Created: created, Released: released}, "on node node-2"},
	} {
		require.Equal(t, test.want, overview.Candidate{Node: "node-2", Released: test.of}.Provenance(), name)
	}
}
