package provision

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestParseNodeGroup(t *testing.T) {
	got, err := ParseNodeGroup("workers=flexlvm:450Gi+450Gi,flexlvm/thin:100Gi")
	require.NoError(t, err)
	require.Equal(t, NodeGroup{Name: "workers", Pools: map[volume.PoolName][]volume.Bytes{
		"flexlvm": {450 * volume.GiB, 450 * volume.GiB}, "flexlvm/thin": {100 * volume.GiB},
	}}, got)
	for _, wrong := range []string{"", "workers", "=flexlvm:1Gi", "workers=flexlvm", "workers=flexlvm:", "workers=flexlvm:-1Gi", "workers=flexlvm:1Gi+", "workers=:1Gi", "a/b=flexlvm:1Gi"} {
		_, err := ParseNodeGroup(wrong)
		require.ErrorContains(t, err, "--node-group", wrong)
	}
}

// A group of nodes has a capacity for those that are not there yet, which follows its nodes
// and its declaration.
func TestPublishNodeGroups(t *testing.T) {
	s := newStage(t)
	group, err := ParseNodeGroup("workers=flexlvm:1000Gi")
	require.NoError(t, err)
	s.groups = []NodeGroup{group}
	require.NoError(t, s.publish(t.Context(), groupKey+"workers"))
	there := s.there(t)
	require.Len(t, there, 1, "one for each class with the pool")
	require.Equal(t, "fast", there[0].StorageClassName)

	for _, host := range []string{"host-2", "host-1"} {
		_, err := s.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "of-" + host, Labels: map[string]string{corev1.LabelHostname: host, pv.LabelNodeGroup: "workers"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	nodes := s.factory.Core().V1().Nodes().Informer().GetStore()
	require.Eventually(t, func() bool { return len(nodes.List()) == 4 }, time.Minute, time.Millisecond)
	require.NoError(t, s.publish(t.Context(), groupKey+"workers"))
	require.Empty(t, s.there(t), "its topology cannot be changed")
	require.NoError(t, s.publish(t.Context(), groupKey+"workers"))
	there = s.there(t)
	require.Len(t, there, 1)

	// What the test with the scheduler's plugin reads (test/cluster/kubernetes).
	content, err := os.ReadFile("../../test/cluster/kubernetes/placement/testdata/node-group.yaml")
	require.NoError(t, err)
	want := storagev1.CSIStorageCapacity{}
	require.NoError(t, yaml.UnmarshalStrict(content, &want))
	want.StorageClassName = "fast" // the name of a class is in the object's too
	require.Equal(t, want.NodeTopology, there[0].NodeTopology)
	require.Equal(t, want.Labels, there[0].Labels)
	require.True(t, want.MaximumVolumeSize.Equal(*there[0].MaximumVolumeSize), there[0].MaximumVolumeSize)

	s.groups = nil
	require.NoError(t, s.publish(t.Context(), groupKey+"workers"))
	require.Empty(t, s.there(t), "the group is not declared any more")
}
