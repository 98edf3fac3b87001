package provision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const autoscaler = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// discoveredOn returns the PersistentVolume of a directory that a node has discovered.
func discoveredOn(node string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "discovered-1", Labels: map[string]string{flexlvmv1.LabelDiscoveredOn: node},
			Annotations: map[string]string{pv.AnnotationProvisionedBy: flexlvmv1.Discoverer},
		},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: "/mnt/disks/a"},
		}},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
}

// retaining gives a PersistentVolume the reclaim policy Retain.
func retaining(object *corev1.PersistentVolume) *corev1.PersistentVolume {
	object.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	return object
}

// reporting returns the reports of a node whose pool has so many volumes in the state retained.
func reporting(t *testing.T, node string, retained int32) cache.Store {
	t.Helper()
	out := cache.NewStore(cache.MetaNamespaceKeyFunc)
	require.NoError(t, out.Add(ledgertest.Report(node, volume.GiB, func(p *flexlvmv1.Pool) {
		p.VolumesByState = map[string]int32{string(volume.Retained): retained}
	})))
	return out
}

// reportingStatus returns the reports of node-1, as the cache holds them, with this status.
func reportingStatus(t *testing.T, change func(*flexlvmv1.NodeStorageStatus)) cache.Store {
	t.Helper()
	report := ledgertest.Report("node-1", volume.GiB)
	change(&report.Status)
	kept, err := controlplane.Transform(report)
	require.NoError(t, err)
	out := cache.NewStore(cache.MetaNamespaceKeyFunc)
	require.NoError(t, out.Add(kept))
	return out
}

// orphans returns a node's status with so many orphans.
func orphans(count int32) func(*flexlvmv1.NodeStorageStatus) {
	return func(s *flexlvmv1.NodeStorageStatus) { s.OrphanCount = count }
}

// orphanedReplica changes a node's status to one with the orphan of a replica that consumers may have written to.
func orphanedReplica(s *flexlvmv1.NodeStorageStatus) {
	s.OrphanCount, s.Orphans = 1, []flexlvmv1.Orphan{{Pool: "flexlvm", Name: "ds-0123456789abcdef", Kind: string(volume.Dataset)}}
}

// inLateGroup returns a node's status with a released volume of a volume group that the node does not see.
func inLateGroup(kept string) func(*flexlvmv1.NodeStorageStatus) {
	return func(s *flexlvmv1.NodeStorageStatus) {
		s.Released, s.ReleasedCount = []flexlvmv1.ReleasedVolume{{Pool: "late", Name: "pvc-1", Kept: kept}}, 1
	}
}

// snapshotOn returns the PersistentVolume of a snapshot, which is Available even if its source is gone.
func snapshotOn(t *testing.T, node string, taken bool) *corev1.PersistentVolume {
	t.Helper()
	spec := ledgertest.ThinWant("pvc-1", volume.GiB, 0).Spec
	spec.Namespace, spec.GroupUUID = "team-a", ledgertest.GroupUUID
	source := persistentvolume.New(pv.Description{Name: "pvc-1", Node: node, Hostname: node, Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
	object, _, err := persistentvolume.Snapshot(source, "snap-1", 0)
	require.NoError(t, err)
	object.Status.Phase = corev1.VolumeAvailable
	if taken {
		object.Annotations[pv.AnnotationSnapshotTaken] = "2026-11-28T12:00:00Z"
	}
	return object
}

// The guard works with the parts of the PersistentVolumes that the caches keep.
func TestScaleDownSeesWhatIsCached(t *testing.T) {
	again := retaining(discoveredOn("node-1", corev1.VolumeAvailable))
	again.Name = "discovered-2"
	for _, whole := range []*corev1.PersistentVolume{discoveredOn("node-1", corev1.VolumeBound), again, snapshotOn(t, "node-1", true)} {
		t.Run(whole.Name, func(t *testing.T) {
			t.Parallel()
			volumes := controlplane.Packed{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolume{}, 0, controlplane.NodeIndex())}
			packed, err := controlplane.Pack(whole)
			require.NoError(t, err)
			require.NoError(t, volumes.SharedIndexInformer.GetIndexer().Add(packed))
			g := newScaleDownGuard(nil, Listers{OnNode: (&watches{volumes: volumes}).onNode}, nil, nil)
			holds, err := g.holdsVolumes("node-1")
			require.NoError(t, err)
			require.True(t, holds)

			cached, _, err := volumes.GetIndexer().GetByKey(whole.Name)
			require.NoError(t, err)
			g.enqueueForVolume(cached.(*corev1.PersistentVolume))
			require.Eventually(t, func() bool { return g.queue.Len() == 1 }, time.Minute, 10*time.Millisecond)
			label, _ := g.queue.Get()
			require.Equal(t, "node-1", label)
		})
	}
}

// The cluster autoscaler does not remove a node that holds volumes, and may do so when they are gone, unless a person
// has set the annotation.
func TestScaleDownIsDisabledWhileVolumesLive(t *testing.T) {
	bound := func(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		out := ledgertest.PersistentVolume("node-1", ledgertest.Want("pvc-1", volume.GiB), change...)
		if out.Status.Phase == "" {
			out.Status.Phase = corev1.VolumeBound
		}
		return out
	}
	in := func(phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return bound(func(v *corev1.PersistentVolume) { v.Status.Phase = phase })
	}
	declared := func() *corev1.PersistentVolume {
		return bound(func(v *corev1.PersistentVolume) {
			v.Status.Phase, v.Annotations[pv.AnnotationDeclared] = corev1.VolumeAvailable, "team-a/ledger"
		})
	}
	released := in(corev1.VolumeReleased)
	readable := bound(func(v *corev1.PersistentVolume) {
		v.Labels[replica.LabelDataset], v.Annotations[pv.AnnotationOnNodeLoss] = "hash", "release"
	})
	// Either consumers write to it, or its class keeps claims.
	keptReplica := bound(func(v *corev1.PersistentVolume) { v.Labels[replica.LabelDataset] = "hash" })
	ours := map[string]string{autoscaler: "true", pv.AnnotationScaleDownOurs: "true"}
	theirs := map[string]string{autoscaler: "true"}
	discovered := func(phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return discoveredOn("node-1", phase)
	}
	tests := map[string]struct {
		has     map[string]string
		volumes []*corev1.PersistentVolume
		want    map[string]string
	}{
		"a bound volume":                {nil, []*corev1.PersistentVolume{bound()}, ours},
		"nothing":                       {nil, nil, nil},
		"a released volume":             {nil, []*corev1.PersistentVolume{released}, nil},
		"a released one that is kept":   {nil, []*corev1.PersistentVolume{retaining(in(corev1.VolumeReleased))}, ours},
		"a kept one is the last":        {ours, []*corev1.PersistentVolume{retaining(in(corev1.VolumeReleased))}, ours},
		"a failed one that is kept":     {nil, []*corev1.PersistentVolume{retaining(in(corev1.VolumeFailed))}, ours},
		"a failed volume":               {nil, []*corev1.PersistentVolume{in(corev1.VolumeFailed)}, nil},
		"one that is available again":   {nil, []*corev1.PersistentVolume{in(corev1.VolumeAvailable)}, ours},
		"a declared volume":             {nil, []*corev1.PersistentVolume{declared()}, nil},
		"a declared one that is kept":   {nil, []*corev1.PersistentVolume{retaining(declared())}, ours},
		"what can be fetched again":     {nil, []*corev1.PersistentVolume{readable}, nil},
		"a replica that is kept":        {nil, []*corev1.PersistentVolume{keptReplica}, ours},
		"a discovered volume":           {nil, []*corev1.PersistentVolume{discovered(corev1.VolumeBound)}, ours},
		"a discovered one that is free": {nil, []*corev1.PersistentVolume{discovered(corev1.VolumeAvailable)}, nil},
		"a discovered one, released":    {nil, []*corev1.PersistentVolume{discovered(corev1.VolumeReleased)}, ours},
		"a discovered one, kept":        {nil, []*corev1.PersistentVolume{retaining(discovered(corev1.VolumeReleased))}, ours},
		"a discovered one, offered":     {nil, []*corev1.PersistentVolume{retaining(discovered(corev1.VolumeAvailable))}, ours},
		"a snapshot":                    {nil, []*corev1.PersistentVolume{snapshotOn(t, "node-1", true)}, ours},
		"a snapshot that is not taken":  {nil, []*corev1.PersistentVolume{snapshotOn(t, "node-1", false)}, nil},
		"the last is gone":              {ours, []*corev1.PersistentVolume{released}, nil},
		"a person's own, and a volume":  {theirs, []*corev1.PersistentVolume{bound()}, theirs},
		"a person's own, and no volume": {theirs, nil, theirs},
		"a person lets the node go": {
			map[string]string{autoscaler: "false", pv.AnnotationScaleDownOurs: "true"}, []*corev1.PersistentVolume{bound()}, map[string]string{autoscaler: "false"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid", Annotations: tt.has}}
			kept, err := controlplane.Transform(node.DeepCopy())
			require.NoError(t, err)
			nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			require.NoError(t, nodes.Add(kept))
			client := fake.NewClientset(node)
			g := newScaleDownGuard(client, Listers{
				Nodes:  corelisters.NewNodeLister(nodes),
				OnNode: func(string) ([]*corev1.PersistentVolume, error) { return tt.volumes, nil },
			}, reporting(t, "node-1", 0), func(label string) (string, bool) { return label, true })
			require.NoError(t, g.guard(t.Context(), "node-1"))
			got, err := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, len(tt.want), len(got.Annotations))
			for name, value := range tt.want {
				require.Equal(t, value, got.Annotations[name], name)
			}
		})
	}
}

// A retained volume has no PersistentVolume: only the node's report shows it.
func TestScaleDownIsDisabledWhileVolumesAreRetained(t *testing.T) {
	ours := map[string]string{autoscaler: "true", pv.AnnotationScaleDownOurs: "true"}
	for name, tt := range map[string]struct {
		has     map[string]string
		reports cache.Store
		want    map[string]string
	}{
		"one is retained":             {nil, reporting(t, "node-1", 1), ours},
		"the last claim is gone":      {ours, reporting(t, "node-1", 1), ours},
		"none is retained":            {ours, reporting(t, "node-1", 0), nil},
		"nothing is reported":         {nil, reporting(t, "node-2", 1), nil},
		"nothing is reported anymore": {ours, reporting(t, "node-2", 1), ours},
		"an orphan":                   {nil, reportingStatus(t, orphans(1)), ours},
		"the orphan of a replica":     {nil, reportingStatus(t, orphanedReplica), ours},
		"no orphan":                   {ours, reportingStatus(t, orphans(0)), nil},
		"retained in a late group":    {ours, reportingStatus(t, inLateGroup(flexlvmv1.KeptRetained)), ours},
		"given up in a late group":    {ours, reportingStatus(t, inLateGroup(flexlvmv1.KeptProblem)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid", Annotations: tt.has}}
			nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			require.NoError(t, nodes.Add(node))
			client := fake.NewClientset(node)
			g := newScaleDownGuard(client, Listers{
				Nodes:  corelisters.NewNodeLister(nodes),
				OnNode: func(string) ([]*corev1.PersistentVolume, error) { return nil, nil },
			}, tt.reports, func(label string) (string, bool) { return label, true })
			require.NoError(t, g.guard(t.Context(), "node-1"))
			got, err := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, len(tt.want), len(got.Annotations))
			for name, value := range tt.want {
				require.Equal(t, value, got.Annotations[name], name)
			}
		})
	}
}

// Only the changes of a report that concern retained volumes cause work.
func TestScaleDownSeesWhenVolumesAreRetained(t *testing.T) {
	in := func(reports cache.Store) any {
		object, _, err := reports.GetByKey("node-1")
		require.NoError(t, err)
		return object
	}
	report := func(retained int32) any { return in(reporting(t, "node-1", retained)) }
	lost := func(orphaned int32) any { return in(reportingStatus(t, orphans(orphaned))) }
	for name, tt := range map[string]struct {
		event func(cache.ResourceEventHandler)
		seen  bool
	}{
		"the first report":     {func(h cache.ResourceEventHandler) { h.OnAdd(report(0), true) }, true},
		"the first is kept":    {func(h cache.ResourceEventHandler) { h.OnUpdate(report(0), report(1)) }, true},
		"the last is given up": {func(h cache.ResourceEventHandler) { h.OnUpdate(report(1), report(0)) }, true},
		"one more":             {func(h cache.ResourceEventHandler) { h.OnUpdate(report(1), report(2)) }, false},
		"the first orphan":     {func(h cache.ResourceEventHandler) { h.OnUpdate(lost(0), lost(1)) }, true},
		"its group is late": {func(h cache.ResourceEventHandler) {
			h.OnUpdate(report(1), in(reportingStatus(t, inLateGroup(flexlvmv1.KeptRetained))))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &immediate{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(controlplane.RetryLimiter())}
			g := newScaleDownGuard(nil, Listers{}, nil, nil)
			g.queue = queue
			tt.event(g.reportHandler())
			require.Equal(t, tt.seen, queue.Len() == 1)
		})
	}
}

// immediate is a queue that delays nothing.
type immediate struct {
	workqueue.TypedRateLimitingInterface[string]
}

func (q *immediate) AddAfter(label string, _ time.Duration) { q.Add(label) }
