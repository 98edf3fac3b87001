package page

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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

// A fakeSource is a source of cluster snapshots that the test sets.
type fakeSource struct {
	snapshot atomic.Pointer[Snapshot]
	version  atomic.Uint64
	pods     []corev1.Pod
	podsErr  error
	asked    []string
}

func sourceOf(s Snapshot) *fakeSource {
	out := &fakeSource{}
	out.set(s)
	return out
}

func (f *fakeSource) set(s Snapshot) {
	f.snapshot.Store(&s)
	f.version.Add(1)
}

func (f *fakeSource) Snapshot() Snapshot { return *f.snapshot.Load() }
func (f *fakeSource) Version() uint64    { return f.version.Load() }

func (f *fakeSource) Pods(_ context.Context, namespace string) ([]corev1.Pod, error) {
	f.asked = append(f.asked, namespace)
	return f.pods, f.podsErr
}

func (f *fakeSource) Spec(_ context.Context, size, class string) (volume.Spec, error) {
	if class != "flexlvm" {
		return volume.Spec{}, fmt.Errorf("read StorageClass %s: not found", class)
	}
	q, err := resource.ParseQuantity(size)
	return volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim, Size: volume.Bytes(q.Value())}, err
}

// storage returns the report of a node with 100 GiB, of which 40 are free and 20 reclaimable.
func storage(name string, change ...func(*flexlvmv1.NodeStorageStatus)) flexlvmv1.NodeStorage {
	s := flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: flexlvmv1.NodeStorageStatus{
		ObservedTime: metav1.NewTime(now.Add(-time.Minute)), Volumes: 3,
		Pools: []flexlvmv1.Pool{{
			Name: "flexlvm", UUID: ledgertest.GroupUUID, Layout: "linear", ExtentSize: resource.MustParse("4Mi"), Promised: resource.MustParse("5Gi"),
			Size: resource.MustParse("100Gi"), Free: resource.MustParse("40Gi"), Reclaimable: resource.MustParse("20Gi"), Allocatable: resource.MustParse("60Gi"),
		}},
		EvictionPolicy: &flexlvmv1.EvictionPolicy{HighThresholdPercent: 100, LowThresholdPercent: 80},
	}}
	for i, size := range []string{"8Gi", "12Gi"} {
		s.Status.Released = append(s.Status.Released, flexlvmv1.ReleasedVolume{
			Pool: "flexlvm", Name: fmt.Sprintf("%s-released-%d", name, i), State: "unreferenced", Namespace: "shop",
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

func missing(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].MissingDevices = 1 }

func claimed(node, name, claim string) corev1.PersistentVolume {
	return *ledgertest.PersistentVolume(node, ledgertest.Want(name, volume.GiB), func(p *corev1.PersistentVolume) {
		p.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: claim}
		p.Status.Phase = corev1.VolumeBound
	})
}

func many(n int) (s Snapshot) {
	for i := range n {
		one := storage(fmt.Sprintf("node-%04d", i))
		if i%100 == 77 {
			missing(&one.Status)
		}
		s.Storages = append(s.Storages, one)
	}
	return s
}

func viewed(s Snapshot, q query) live { return liveOf(digestOf(s, 1, now), q, now) }

func TestBarsAddUp(t *testing.T) {
	for name, p := range map[string]overview.Pool{
		"usual":                         {Size: 100, InUse: 40, Reclaimable: 20, Free: 40, Promised: 5},
		"promised more than is free":    {Size: 100, InUse: 40, Reclaimable: 50, Free: 10, Promised: 30},
		"promised more than there is":   {Size: 100, InUse: 90, Reclaimable: 5, Free: 5, Promised: 300},
		"empty":                         {Size: 100, Free: 100},
		"a trace of everything":         {Size: 1 << 50, InUse: 1, Reclaimable: 1, Free: 1<<50 - 2, Promised: 1},
		"reported at different moments": {Size: 100, InUse: 80, Reclaimable: 60, Free: 60},
	} {
		at := int64(0)
		for _, part := range barOf(p).Parts {
			require.Equal(t, at, part.X, name)
			require.Positive(t, part.Width, name)
			at += part.Width
		}
		require.InDelta(t, barWidth, at, 4, name)
	}
	require.Empty(t, barOf(overview.Pool{}).Parts)

	data, metadata := int32(70), int32(9)
	label := barOf(overview.Pool{Name: "vg/thin", Size: 4 * volume.GiB, InUse: volume.GiB, Free: 3 * volume.GiB, Promised: 5 * volume.GiB, ThinData: &data, ThinMetadata: &metadata}).Label
	require.Equal(t, "vg/thin of 4 GiB: 1 GiB in use (25 %), 5 GiB promised, 0 B reclaimable, 3 GiB free, thin data 70 %, thin metadata 9 %", label)
}

func TestNodesComeInPagesTheWorstFirst(t *testing.T) {
	s := many(1000)
	first := viewed(s, query{})
	require.Len(t, first.Nodes, maxNodes)
	require.Equal(t, "node-0077", first.Nodes[0].Name)
	require.Equal(t, overview.Critical, first.Nodes[0].Severity)
	require.Equal(t, "10 of 1000 nodes need attention.", first.Headline)
	require.Len(t, first.Problems, 10)
	require.Len(t, first.Queue, maxEvictions)
	require.Equal(t, 2000-maxEvictions, first.MoreQueue)
	require.Empty(t, first.Prev)

	seen := map[string]bool{}
	for q := (query{}); ; {
		page := viewed(s, q)
		for _, n := range page.Nodes {
			seen[n.Name] = true
		}
		require.Equal(t, q.From+1, page.First)
		if page.Next == "" {
			require.Equal(t, 1000, page.Last)
			break
		}
		require.Equal(t, fmt.Sprintf("?from=%d#nodes", page.Last), page.Next)
		q.From = page.Last
	}
	require.Len(t, seen, 1000)
	require.Equal(t, 1000, viewed(s, query{From: 1 << 40}).Last, "beyond the end is the end")
	none := viewed(Snapshot{}, query{From: 7})
	require.Equal(t, "No node has reported.", none.Headline)
	require.Equal(t, "Reading the cluster.", viewed(Snapshot{Reading: true}, query{}).Headline)
}

func TestQueueOfANode(t *testing.T) {
	s := Snapshot{Objects: overview.Objects{Storages: []flexlvmv1.NodeStorage{storage("a", func(s *flexlvmv1.NodeStorageStatus) {
		s.ReleasedCount = 9
		s.Released[0].EvictionOrder, s.Released[0].Kept = 0, flexlvmv1.KeptTooYoung
		s.Released[1].EvictionOrder = 1
		s.Evictions = []flexlvmv1.Eviction{{Name: "pvc-gone", Pool: "flexlvm", Size: resource.MustParse("1Gi"), Time: metav1.NewTime(now.Add(-time.Hour)), Message: "its time was up"}}
	})}}}
	node := viewed(s, query{Node: "a"}).Node
	require.Equal(t, "a-released-1", node.Released[0].Name)
	require.Equal(t, "number 1 in its pool's eviction order when room is needed", node.Released[0].Why)
	require.Contains(t, node.Released[1].Why, "kept: it was released less than --min-age ago")
	require.EqualValues(t, 7, node.Unlisted)
	require.Equal(t, "60m", node.Evicted[0].Ago)
	require.True(t, viewed(s, query{Node: "b"}).Node.Missing)

	s.Storages[0].Status.Pools[0].RemovalsFail = true
	node = viewed(s, query{Node: "a"}).Node
	require.Equal(t, "number 1 in its pool's eviction order, but removals in the pool fail, so it is not evicted for its room until that is corrected", node.Released[0].Why)
}

func TestDatasets(t *testing.T) {
	manager := func(name string, v flexlvmv1.VolumeStatus) flexlvmv1.VolumeManager {
		v.ID = "v"
		return flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Status: flexlvmv1.VolumeManagerStatus{Volumes: []flexlvmv1.VolumeStatus{v}}}
	}
	all := datasetsOf([]flexlvmv1.VolumeManager{
		manager("a-done", flexlvmv1.VolumeStatus{Replicas: 1, ReadyReplicas: 1, Message: flexlvmv1.MessageSuccess, Nodes: []flexlvmv1.ReplicaStatus{{State: flexlvmv1.ReplicaComplete}}}),
		manager("b-fills", flexlvmv1.VolumeStatus{Replicas: 2, ReadyReplicas: 1, Progress: &flexlvmv1.Progress{Percent: 40, Bytes: 2 << 30, BytesTotal: 5 << 30}, Nodes: []flexlvmv1.ReplicaStatus{{Node: "n", State: flexlvmv1.ReplicaLoading}}}),
		manager("c-failed", flexlvmv1.VolumeStatus{Replicas: 1, Message: "no such bucket", Nodes: []flexlvmv1.ReplicaStatus{{State: flexlvmv1.ReplicaFailed}}}),
	})
	var told []string
	for _, d := range all {
		told = append(told, fmt.Sprint(d.Name, " ", d.State, " ", d.Loaded(), " ", len(d.Nodes), " ", d.Message))
	}
	require.Equal(t, []string{"ml/c-failed/v failed - 1 no such bucket", "ml/b-fills/v incomplete 2 GiB of 5 GiB 1 ", "ml/a-done/v complete - 0 "}, told)
}

func TestFindingByClaim(t *testing.T) {
	source := sourceOf(Snapshot{Objects: overview.Objects{
		Storages: []flexlvmv1.NodeStorage{storage("a"), storage("data-node")},
		Volumes:  []corev1.PersistentVolume{claimed("a", "pvc-1", "data-0"), claimed("a", "pvc-2", "logs")},
	}})
	source.pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-0"}}}}}}}
	s := New(Config{Source: source, Now: func() time.Time { return now }})
	names := func(text string) (out []string) {
		f := s.find(t.Context(), s.digester.get(), text, now)
		for _, v := range f.Volumes {
			out = append(out, v.Name)
		}
		for _, n := range f.Nodes {
			out = append(out, n.Name)
		}
		return out
	}
	require.Equal(t, []string{"pvc-1", "data-node-released-0", "data-node-released-1", "data-node"}, names("DATA"))
	require.Equal(t, []string{"pvc-1"}, names("shop/data-0"))
	require.Equal(t, []string{"pvc-2"}, names("pvc-2"))
	require.Empty(t, names("nothing"))
	require.Equal(t, "db-0", s.find(t.Context(), s.digester.get(), "data-0", now).Volumes[0].Pod)
	source.podsErr = errors.New("forbidden")
	require.Empty(t, s.find(t.Context(), s.digester.get(), "data-0", now).Volumes[0].Pod)

	var crowd []corev1.PersistentVolume
	for i := range 80 {
		crowd = append(crowd, claimed("a", fmt.Sprintf("pvc-%d", i), "data"))
	}
	source.set(Snapshot{Objects: overview.Objects{Volumes: crowd}})
	f := s.find(t.Context(), s.digester.get(), "data", now)
	require.Len(t, f.Volumes, maxFound)
	require.Equal(t, 30, f.MoreVolumes)
}

func TestWhatIf(t *testing.T) {
	source := sourceOf(Snapshot{Objects: overview.Objects{Storages: []flexlvmv1.NodeStorage{
		storage("a", func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].Allocatable = resource.MustParse("10Gi") }), storage("b"),
	}}})
	s := New(Config{Source: source, Now: func() time.Time { return now }})
	ask := func(q query) *whatIf { return s.whatIf(t.Context(), s.digester.get(), q, now) }
	got := ask(query{Claim: "45Gi", Class: "flexlvm", Nodes: 3})
	require.Equal(t, "A claim of 45 GiB of class flexlvm fits on 1 of 2 nodes. 3 are needed: 2 too few.", got.Says)
	require.Equal(t, "b", got.Fits[0].Node)
	require.Equal(t, "b-released-0", got.Fits[0].Goes[0].Name)
	require.Contains(t, got.Fits[1].Why, "has no room")
	require.Contains(t, ask(query{Claim: "45Gi", Class: "other"}).Error, "read StorageClass other")
	source.set(many(200))
	require.Len(t, ask(query{Claim: "1Gi", Class: "flexlvm", Nodes: 200}).Fits, 4*maxFits)
	require.Equal(t, 200-maxFits, ask(query{Claim: "1Gi", Class: "flexlvm", Nodes: 1}).More)
}

func BenchmarkLiveOf1000Nodes(b *testing.B) {
	s := many(1000)
	for b.Loop() {
		var out strings.Builder
		require.NoError(b, render(&out, "live", viewed(s, query{})))
		b.ReportMetric(float64(out.Len()), "bytes")
	}
}

func BenchmarkWhatIfOn1000Nodes(b *testing.B) {
	snapshot := many(1000)
	for i := range 10_000 {
		snapshot.Volumes = append(snapshot.Volumes, claimed(fmt.Sprintf("node-%04d", i%1000), fmt.Sprintf("pvc-%d", i), "data"))
	}
	s := New(Config{Source: sourceOf(snapshot), Now: func() time.Time { return now }})
	for b.Loop() {
		require.Empty(b, s.whatIf(b.Context(), s.digester.get(), query{Claim: "45Gi", Class: "flexlvm"}, now).Error)
	}
}
