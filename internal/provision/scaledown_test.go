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
	for _, whole := range []*corev1.PersistentVolume{discoveredOn("node-1", corev1.VolumeBound), snapshotOn(t, "node-1", true)} {
		t.Run(whole.Name, func(t *testing.T) {
			t.Parallel()
			volumes := controlplane.Packed{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolume{}, 0, controlplane.NodeIndex())}
			packed, err := controlplane.Pack(whole)
			require.NoError(t, err)
			require.NoError(t, volumes.SharedIndexInformer.GetIndexer().Add(packed))
			g := newScaleDownGuard(nil, Listers{OnNode: (&watches{volumes: volumes}).onNode}, nil)
			holds, err := g.holdsVolumes("node-1")
			require.NoError(t, err)
			require.True(t, holds)

			cached, _, err := volumes.GetIndexer().GetByKey(whole.Name)
			require.NoError(t, err)
			g.seeVolume(cached.(*corev1.PersistentVolume))
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
	released := bound(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased })
	readable := bound(func(v *corev1.PersistentVolume) {
		v.Labels[replica.LabelDataset], v.Annotations[pv.AnnotationOnNodeLoss] = "hash", "release"
	})
	writable := bound(func(v *corev1.PersistentVolume) { v.Labels[replica.LabelDataset] = "hash" })
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
		"what can be fetched again":     {nil, []*corev1.PersistentVolume{readable}, nil},
		"what consumers write":          {nil, []*corev1.PersistentVolume{writable}, ours},
		"a discovered volume":           {nil, []*corev1.PersistentVolume{discovered(corev1.VolumeBound)}, ours},
		"a discovered one that is free": {nil, []*corev1.PersistentVolume{discovered(corev1.VolumeAvailable)}, nil},
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
			}, func(label string) (string, bool) { return label, true })
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
