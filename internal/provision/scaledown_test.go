package provision

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const autoscaler = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// The cluster autoscaler does not remove a node that carries volumes, and may when they are
// gone, unless a person has said something else.
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
