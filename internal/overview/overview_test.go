package overview_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

var now = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

// node returns a healthy node with 100 GiB, of which 40 are free and 20 reclaimable.
func node(name string, change ...func(*flexlvmv1.NodeStorageStatus)) flexlvmv1.NodeStorage {
	s := flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: flexlvmv1.NodeStorageStatus{
		ObservedTime: metav1.NewTime(now.Add(-time.Minute)),
		Conditions:   []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"}},
		Pools: []flexlvmv1.Pool{{
			Name: "flexlvm", UUID: ledgertest.GroupUUID, Layout: "linear", ExtentSize: resource.MustParse("4Mi"),
			Size: resource.MustParse("100Gi"), Free: resource.MustParse("40Gi"), Reclaimable: resource.MustParse("20Gi"), Allocatable: resource.MustParse("60Gi"),
			VolumesByState: map[string]int32{"ready": 1, "unreferenced": 2},
		}},
		EvictionPolicy: &flexlvmv1.EvictionPolicy{HighThresholdPercent: 100, LowThresholdPercent: 80},
	}}
	for i, size := range []string{"8Gi", "12Gi"} {
		s.Status.Released = append(s.Status.Released, flexlvmv1.ReleasedVolume{
			Pool: "flexlvm", Name: fmt.Sprintf("released-%d", i), State: "unreferenced", Namespace: "shop",
			Size: resource.MustParse(size), Room: resource.MustParse(size), EvictionOrder: int32(i + 1),
			LastUsed: metav1.NewTime(now.Add(time.Duration(i-10) * time.Hour)), Released: metav1.NewTime(now.Add(-5 * time.Hour)),
		})
	}
	s.Status.ReleasedCount = 2
	for _, f := range change {
		f(&s.Status)
	}
	return s
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) func(*flexlvmv1.NodeStorageStatus) {
	return func(s *flexlvmv1.NodeStorageStatus) {
		s.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message}}
	}
}

func TestStatusPutsTheWorstFirst(t *testing.T) {
	s := overview.StatusOf([]flexlvmv1.NodeStorage{
		node("a-well"),
		node("b-closed", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Closed = "its metadata is 90 % full" }),
		node("c-short", condition(flexlvmv1.ConditionShortfall, metav1.ConditionTrue, flexlvmv1.ReasonRoomMissing, "5 GiB are missing")),
		node("d-silent", func(s *flexlvmv1.NodeStorageStatus) { s.ObservedTime = metav1.NewTime(now.Add(-time.Hour)) }),
		node("e-fuller", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Free = resource.MustParse("1Gi") }),
		node("f-system-full", func(s *flexlvmv1.NodeStorageStatus) {
			s.Pools = append(s.Pools, flexlvmv1.Pool{Name: "debian", Layout: "linear", Size: resource.MustParse("100Gi"), ForeignVolumes: 2})
		}),
		node("g-promised", func(s *flexlvmv1.NodeStorageStatus) {
			s.Pools = append(s.Pools, flexlvmv1.Pool{
				Name: "fast", Layout: "linear", Size: resource.MustParse("100Gi"), Free: resource.MustParse("50Gi"), Promised: resource.MustParse("1Gi"),
			})
		}),
	}, now)
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name)
		for _, p := range n.Problems {
			require.NotEmpty(t, p.Message)
			require.NotEmpty(t, p.Next)
		}
	}
	require.Equal(t, []string{"c-short", "d-silent", "b-closed", "e-fuller", "g-promised", "a-well", "f-system-full"}, names, "a volume group that flexlvm does not use does not count")
	require.Equal(t, 3, s.Ailing)
	require.Equal(t, overview.Critical, s.Nodes[0].Problems[0].Severity)
	require.Equal(t, "5 GiB are missing", s.Nodes[0].Problems[0].Message)
	require.Equal(t, 800*volume.GiB, s.Total.Size, "without the group of the operating system")
	require.Equal(t, s.Total.Size, s.Total.InUse+s.Total.Reclaimable+s.Total.Free)
}

func TestEveryProblemHasANextStep(t *testing.T) {
	full := int32(85)
	for name, tt := range map[string]struct {
		change   func(*flexlvmv1.NodeStorageStatus)
		severity overview.Severity
	}{
		"not ready":     {condition(flexlvmv1.ConditionReady, metav1.ConditionFalse, flexlvmv1.ReasonLVMFailed, "lvs failed"), overview.Critical},
		"never seen":    {func(s *flexlvmv1.NodeStorageStatus) { s.ObservedTime = metav1.Time{} }, overview.Critical},
		"full in use":   {condition(flexlvmv1.ConditionShortfall, metav1.ConditionFalse, flexlvmv1.ReasonFullOfVolumesInUse, "full"), overview.Warning},
		"stalled":       {condition(flexlvmv1.ConditionShortfall, metav1.ConditionFalse, flexlvmv1.ReasonRemovalsFail, "removals have failed"), overview.Warning},
		"orphans":       {func(s *flexlvmv1.NodeStorageStatus) { s.OrphanCount = 2 }, overview.Warning},
		"disk away":     {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].MissingDevices = 1 }, overview.Critical},
		"metadata":      {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].MetadataUsedPercent = 80 }, overview.Warning},
		"thin metadata": {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].ThinMetadataPercent = &full }, overview.Critical},
	} {
		s := overview.StatusOf([]flexlvmv1.NodeStorage{node("n", tt.change)}, now)
		require.Len(t, s.Nodes[0].Problems, 1, name)
		require.Equal(t, tt.severity, s.Nodes[0].Problems[0].Severity, name)
		require.NotEmpty(t, s.Nodes[0].Problems[0].Next, name)
	}
}

// While LVM reports that nothing of its metadata area is free, nothing is evicted for it, so the advice does not say that.
func TestAdviceForMetadata(t *testing.T) {
	for used, want := range map[int32]string{
		80:  "from 90 % on, the node daemon evicts released volumes for it",
		99:  "from 90 % on, the node daemon evicts released volumes for it",
		100: "run flexlvm doctor --group flexlvm on the node; nothing is evicted while LVM reports that nothing of the area is free",
	} {
		s := overview.StatusOf([]flexlvmv1.NodeStorage{node("n", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].MetadataUsedPercent = used })}, now)
		require.Len(t, s.Nodes[0].Problems, 1, used)
		require.Contains(t, s.Nodes[0].Problems[0].Next, want, used)
	}
}

// Volume groups in which flexlvm has nothing are not judged, but empty groups and flexlvm's pools are.
func TestGroupsOfOthersAreNoProblem(t *testing.T) {
	full := flexlvmv1.Pool{Name: "rl", Layout: "linear", Size: resource.MustParse("100Gi"), ForeignVolumes: 2, MetadataUsedPercent: 99, Closed: "volume group rl is exported"}
	for name, tt := range map[string]struct {
		change func(*flexlvmv1.NodeStorageStatus)
		want   int
	}{
		"of the operating system": {func(*flexlvmv1.NodeStorageStatus) {}, 0},
		"empty":                   {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[1].ForeignVolumes = 0 }, 2},
		"promised":                {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[1].Promised = resource.MustParse("1Gi") }, 2},
		"shared":                  {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[1].VolumesByState = map[string]int32{"ready": 1} }, 2},
		"a thin pool":             {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[1].Name = "rl/thin" }, 2},
		"a directory pool":        {func(s *flexlvmv1.NodeStorageStatus) { s.Pools[1].Name = "rl:small" }, 2},
	} {
		s := overview.StatusOf([]flexlvmv1.NodeStorage{node("n", func(s *flexlvmv1.NodeStorageStatus) {
			s.Pools = append(s.Pools, full)
			tt.change(s)
		})}, now)
		require.Len(t, s.Nodes[0].Problems, tt.want, name)
		for _, p := range s.Nodes[0].Problems {
			require.Contains(t, p.Pool, "rl")
		}
	}
	s := overview.StatusOf([]flexlvmv1.NodeStorage{node("n", func(s *flexlvmv1.NodeStorageStatus) {
		s.Pools[0].Name, s.Pools[0].Closed = "fast/thin", "it is not active"
	})}, now)
	require.Equal(t, "run flexlvm doctor --group fast on the node", s.Nodes[0].Problems[0].Next)
}

func boundTo(claim string) func(*corev1.PersistentVolume) {
	return func(p *corev1.PersistentVolume) {
		p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: claim}
		p.Status.Phase = corev1.VolumeBound
	}
}

func TestVolumes(t *testing.T) {
	objects := overview.Objects{
		Storages: []flexlvmv1.NodeStorage{node("node-1", deleted("lost")), node("node-2", func(s *flexlvmv1.NodeStorageStatus) { s.Released = nil })},
		Volumes: []corev1.PersistentVolume{
			*ledgertest.PersistentVolume("node-1", ledgertest.Want("pvc-1", volume.GiB), boundTo("data")),
			*ledgertest.PersistentVolume("node-2", ledgertest.Want("pvc-2", volume.GiB), boundTo("logs")),
			*ledgertest.PersistentVolume("node-1", ledgertest.Want("released-1", volume.GiB), boundTo("gone")), // being deleted
			*ledgertest.PersistentVolume("node-2", ledgertest.Want("pvc-3", volume.GiB), func(p *corev1.PersistentVolume) { p.Spec.FlexVolume.Options["size"] = "?" }),
		},
		Pods: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ended"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "logs"}}}}}},
		},
	}
	line := func(f overview.Filter) (out []string) {
		for _, v := range overview.VolumesOf(objects, f) {
			out = append(out, fmt.Sprint(v.Node, " ", v.Name, " ", v.Claim, " ", v.State, " ", v.EvictionOrder, " ", v.Pods))
		}
		return out
	}
	require.Equal(t, []string{
		"node-1 pvc-1 data Bound 0 [db-0]",
		"node-1 released-0 lost unreferenced 1 []",
		"node-1 released-1 gone unreferenced 2 []",
		"node-2 pvc-3  Unreadable 0 []",
		"node-2 pvc-2 logs Bound 0 []",
	}, line(overview.Filter{}))
	require.Equal(t, []string{"node-2 pvc-2 logs Bound 0 []"}, line(overview.Filter{Namespace: "shop", Node: "node-2"}))
	require.Len(t, line(overview.Filter{Claim: "data"}), 1)
	require.Len(t, line(overview.Filter{Claim: "lost"}), 1, "one that was deleted")
	// Volumes that are already listed as released are listed once.
	status := &objects.Storages[0].Status
	status.Orphans = []flexlvmv1.Orphan{
		{Pool: "flexlvm", Name: "left", State: "ready", Namespace: "shop"}, {Name: "pvc-1", State: "ready"},
		{Name: "released-0", State: "unreferenced", FilesystemUUID: status.Released[0].FilesystemUUID},
	}
	listed := overview.VolumesOf(objects, overview.Filter{Node: "node-1"})
	require.Len(t, listed, 4)
	require.Equal(t, overview.Volume{Node: "node-1", Pool: "flexlvm", Name: "left", Namespace: "shop", State: "ready", Kept: "Orphan"}, listed[1], "before what goes")
	require.Empty(t, overview.VolumesOf(overview.Objects{}, overview.Filter{}))
}

// A claim waits until volumes that were just released may be evicted, which then happens for it.
func TestFitsLater(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: 45 * volume.GiB}
	young := func(ages ...time.Duration) func(*flexlvmv1.NodeStorageStatus) {
		return func(s *flexlvmv1.NodeStorageStatus) {
			s.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 100, LowThresholdPercent: 80, MinAge: metav1.Duration{Duration: 2 * time.Minute}}
			for i, age := range ages {
				s.Released[i].Released = metav1.NewTime(now.Add(-age))
				if age < 2*time.Minute { // a young volume is not yet reported as reclaimable
					s.Pools[0].Reclaimable.Sub(s.Released[i].Room)
					s.Pools[0].Allocatable.Sub(s.Released[i].Room)
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		ages  []time.Duration
		after time.Duration
		goes  string
	}{
		"both old":              {[]time.Duration{time.Hour, time.Hour}, 0, "released-0"},
		"the other one is old":  {[]time.Duration{time.Second, time.Hour}, 0, "released-1"},
		"the first is old soon": {[]time.Duration{time.Minute, time.Second}, time.Minute, "released-0"},
		"the other is old soon": {[]time.Duration{time.Second, 90 * time.Second}, 30 * time.Second, "released-1"},
	} {
		f := overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{node("n", young(tt.ages...))}}, spec, now)[0]
		require.True(t, f.Fits, name)
		require.Len(t, f.Evictions, 1, name)
		require.Equal(t, tt.goes, f.Evictions[0].Name, name)
		require.Equal(t, tt.after == 0, f.After.IsZero(), name)
		if tt.after > 0 {
			require.Equal(t, now.Add(tt.after), f.After.Time, name)
		}
	}
}

// A claim that fills its pool evicts the volumes that were just released, once they are old enough.
func TestThenLater(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: 35 * volume.GiB}
	f := overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{node("n", func(s *flexlvmv1.NodeStorageStatus) {
		s.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 85, LowThresholdPercent: 80, MinAge: metav1.Duration{Duration: 2 * time.Minute}}
		for i := range s.Released {
			s.Released[i].Released = metav1.NewTime(now.Add(-time.Duration(i) * time.Second))
		}
	})}}, spec, now)[0]
	require.Empty(t, f.Evictions)
	require.Zero(t, f.After)
	require.Len(t, f.Then, 2)
	require.Equal(t, "released-0", f.Then[0].Name, "the least recently used first")
}

// Evictions from another pool that is too full do not count for the claim, and the claim is not refused
// because evictions are blocked on the node.
func TestOtherPoolsAreNotForeseen(t *testing.T) {
	tooFull := func(s *flexlvmv1.NodeStorageStatus) {
		s.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 85, LowThresholdPercent: 80}
		other := *s.Pools[0].DeepCopy()
		other.Name, other.UUID, other.Free, other.Allocatable = "other", "other", resource.MustParse("1Gi"), resource.MustParse("21Gi")
		for i := range s.Released {
			s.Released[i].Pool = "other"
		}
		s.Pools[0].Reclaimable, s.Pools[0].Allocatable = resource.Quantity{}, s.Pools[0].Free
		s.Pools = append(s.Pools, other)
	}
	blocked := condition(flexlvmv1.ConditionReady, metav1.ConditionFalse, flexlvmv1.ReasonEvictionBlocked, "the API server seems to have lost its memory")
	ask := func(group volume.Group, change ...func(*flexlvmv1.NodeStorageStatus)) overview.Fit {
		spec := volume.Spec{Group: group, Layout: volume.Linear, Kind: volume.Claim, Size: volume.GiB}
		return overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{node("n", append(change, tooFull)...)}}, spec, now)[0]
	}
	f := ask("flexlvm")
	require.True(t, f.Fits, f.Why)
	require.Empty(t, f.Evictions)
	require.Empty(t, f.Then)
	require.True(t, ask("flexlvm", blocked).Fits)
	require.NotEmpty(t, ask("other").Evictions)
	require.Contains(t, ask("other", blocked).Why, "lost its memory")
}

// Space that is being removed will be free: no other volume is evicted for it.
func TestRemovalsAreForeseen(t *testing.T) {
	full := func(s *flexlvmv1.NodeStorageStatus) {
		s.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 85, LowThresholdPercent: 80}
		s.Pools[0].Free = resource.MustParse("14Gi")
	}
	removing := func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Removing = resource.MustParse("10Gi") }
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: 7 * volume.GiB}
	atOnce := func(change ...func(*flexlvmv1.NodeStorageStatus)) (names []string) {
		for _, e := range overview.NextOf([]flexlvmv1.NodeStorage{node("n", append(change, full)...)}, 9, now) {
			if e.Reason != "" {
				names = append(names, e.Name)
			}
		}
		return names
	}
	require.Equal(t, []string{"released-0"}, atOnce())
	require.Empty(t, atOnce(removing))
	f := overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{node("n", full, removing)}}, spec, now)[0]
	require.True(t, f.Fits, f.Why)
	require.Empty(t, f.Evictions, "24 GiB are free when the removal has ended")
}

// Young volumes that are evicted as soon as they are old enough are counted only once.
func TestYoungVolumesCountOnce(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: 45 * volume.GiB}
	f := overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{node("n", func(s *flexlvmv1.NodeStorageStatus) {
		s.EvictionPolicy = &flexlvmv1.EvictionPolicy{HighThresholdPercent: 85, LowThresholdPercent: 80, MinAge: metav1.Duration{Duration: 2 * time.Minute}}
		s.Pools[0].Free, s.Pools[0].Reclaimable, s.Pools[0].Allocatable = resource.MustParse("10Gi"), resource.Quantity{}, resource.MustParse("10Gi")
		for i := range s.Released {
			s.Released[i].Released, s.Released[i].Kept = metav1.NewTime(now), flexlvmv1.KeptTooYoung
		}
	})}}, spec, now)[0]
	require.False(t, f.Fits, "10 GiB are free, and 20 will be reclaimable: %+v", f)
	require.Contains(t, f.Why, "has no room")
}

func TestFitsOrder(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: 45 * volume.GiB}
	blocked := condition(flexlvmv1.ConditionReady, metav1.ConditionFalse, flexlvmv1.ReasonEvictionBlocked, "the API server seems to have lost its memory")
	fits := overview.FitsOf(overview.Objects{Storages: []flexlvmv1.NodeStorage{
		node("a-blocked", blocked),
		node("b-evicts"),
		node("c-free", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Free = resource.MustParse("60Gi") }),
		node("d-full", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Allocatable = resource.MustParse("10Gi") }),
		node("e-closed", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Closed = "a device is missing" }),
		node("f-unlisted", func(s *flexlvmv1.NodeStorageStatus) { s.ReleasedCount = 90 }),
	}}, spec, now)
	var names []string
	by := map[string]overview.Fit{}
	for _, f := range fits {
		names = append(names, f.Node)
		by[f.Node] = f
	}
	require.Equal(t, []string{"c-free", "b-evicts", "f-unlisted", "a-blocked", "d-full", "e-closed"}, names)
	require.Empty(t, by["c-free"].Evictions)
	require.Len(t, by["b-evicts"].Evictions, 1)
	require.Equal(t, "released-0", by["b-evicts"].Evictions[0].Name)
	require.Contains(t, by["b-evicts"].Evictions[0].Message, "evicting it frees 8 GiB")
	require.EqualValues(t, 88, by["f-unlisted"].Unlisted)
	require.Contains(t, by["a-blocked"].Why, "lost its memory")
	require.Contains(t, by["d-full"].Why, "has no room")
	require.Contains(t, by["e-closed"].Why, "a device is missing")
}
