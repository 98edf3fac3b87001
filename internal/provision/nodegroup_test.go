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
	got, err = ParseNodeGroup("workers=flexlvm:directories:20Gi,flexlvm:1Ti")
	require.NoError(t, err)
	require.Equal(t, NodeGroup{Name: "workers", Pools: map[volume.PoolName][]volume.Bytes{
		"flexlvm:directories": {20 * volume.GiB}, "flexlvm": {1024 * volume.GiB},
	}}, got)
	for _, wrong := range []string{"workers=flexlvm:directories", "workers=flexlvm:1Gi,flexlvm:2Gi", "workers=a:b:c:1Gi", "", "workers", "=flexlvm:1Gi", "workers=flexlvm", "workers=flexlvm:", "workers=flexlvm:-1Gi", "workers=flexlvm:1Gi+", "workers=:1Gi", "a/b=flexlvm:1Gi"} {
		_, err := ParseNodeGroup(wrong)
		require.ErrorContains(t, err, "--node-group", wrong)
	}
}

// A group must not be declared twice: only one declaration would count.
func TestParseNodeGroups(t *testing.T) {
	got, err := ParseNodeGroups([]string{"workers=flexlvm:1Gi", "others=flexlvm:2Gi"})
	require.NoError(t, err)
	require.Len(t, got, 2)
	_, err = ParseNodeGroups([]string{"workers=flexlvm:900Gi", "workers=fast:1Ti"})
	require.EqualError(t, err, `--node-group is "workers=fast:1Ti": "workers" is given twice; put its pools into one, with commas, such as workers=flexlvm:900Gi,fast:1Ti`)
}

// Room for directory volumes is counted in blocks, not in extents.
func TestNodeGroupWithADirectoryPool(t *testing.T) {
	group, err := ParseNodeGroup("workers=flexlvm:small:20482Mi")
	require.NoError(t, err)
	parameters, err := ParseParameters(map[string]string{"layout": "directory", "directoryPool": "small", "trustPods": "true"})
	require.NoError(t, err)
	maxSize, has := group.maxVolumeSize(parameters.Spec)
	require.True(t, has)
	require.Equal(t, volume.Largest([]volume.Bytes{20482 * volume.MiB}, parameters.Spec, volume.Block), maxSize)
	require.NotEqual(t, volume.Largest([]volume.Bytes{20482 * volume.MiB}, parameters.Spec, volume.DefaultExtent), maxSize)
	_, has = group.maxVolumeSize(volume.Spec{Group: "flexlvm"})
	require.False(t, has)
}

// A node group has a capacity for its future nodes, which follows its existing nodes and its declaration.
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

	// The test with the scheduler's plugin reads this file (test/cluster/kubernetes).
	content, err := os.ReadFile("../../test/cluster/kubernetes/placement/testdata/node-group.yaml")
	require.NoError(t, err)
	want := storagev1.CSIStorageCapacity{}
	require.NoError(t, yaml.UnmarshalStrict(content, &want))
	want.StorageClassName = "fast" // the name of a class is also part of the object's name
	require.Equal(t, want.NodeTopology, there[0].NodeTopology)
	require.Equal(t, want.Labels, there[0].Labels)
	require.True(t, want.MaximumVolumeSize.Equal(*there[0].MaximumVolumeSize), there[0].MaximumVolumeSize)

	s.groups = nil
	require.NoError(t, s.publish(t.Context(), groupKey+"workers"))
	require.Empty(t, s.there(t), "the group is not declared any more")
}

// Nodes with the same hostname label count as one node in the capacity of each class.
func TestNodeGroupWithOneHostnameTwice(t *testing.T) {
	s := newStage(t)
	group, err := ParseNodeGroup("workers=flexlvm:1000Gi,disks:1000Gi")
	require.NoError(t, err)
	s.groups = []NodeGroup{group}
	for _, name := range []string{"a", "b", "c"} {
		_, err := s.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelHostname: "host-1", pv.LabelNodeGroup: "workers"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	nodes := s.factory.Core().V1().Nodes().Informer().GetStore()
	require.Eventually(t, func() bool { return len(nodes.List()) == 5 }, time.Minute, time.Millisecond)
	capacities, err := s.templates("workers")
	require.NoError(t, err)
	require.Len(t, capacities, 2, "of classes fast and slow")
	for _, c := range capacities {
		require.Equal(t, []string{"host-1"}, c.NodeTopology.MatchExpressions[2].Values, c.StorageClassName)
	}
}
