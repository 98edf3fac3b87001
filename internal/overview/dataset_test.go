package overview_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

func TestDatasets(t *testing.T) {
	half := &flexlvmv1.Progress{Percent: 50, Files: 5, FilesTotal: 10, Bytes: 512, BytesTotal: 1024}
	loading := flexlvmv1.VolumeManager{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "images", Generation: 2},
		Status: flexlvmv1.VolumeManagerStatus{ObservedGeneration: 2, State: flexlvmv1.StatePending, Volumes: []flexlvmv1.VolumeStatus{{
			ID: "a", Replicas: 60, ReadyReplicas: 1, Progress: half, Message: "loading",
			VolumeSource: &flexlvmv1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "images-a"}},
			Nodes: []flexlvmv1.ReplicaStatus{
				{Claim: "images-a-0", Node: "node-1", State: flexlvmv1.ReplicaLoading, Progress: half},
				{Claim: "images-a-1", State: flexlvmv1.ReplicaWaiting, Message: "for room"},
				{Claim: "images-a-2", Node: "node-2", State: flexlvmv1.ReplicaComplete},
			},
		}}},
	}
	early := flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "early"}}
	all := overview.DatasetsOf([]flexlvmv1.VolumeManager{loading, early})
	require.Len(t, all, 2)
	require.Equal(t, "early", all[0].Name)
	require.Contains(t, all[0].Message, "has not processed it yet")
	d := all[1]
	require.Equal(t, "images-a", d.Claim)
	require.Equal(t, 57, d.Unlisted)
	require.Equal(t, []overview.Replica{
		{Node: "node-1", Claim: "images-a-0", State: flexlvmv1.ReplicaLoading, Progress: *half},
		{Claim: "images-a-1", State: flexlvmv1.ReplicaWaiting, Message: "for room"},
		{Node: "node-2", Claim: "images-a-2", State: flexlvmv1.ReplicaComplete, Progress: flexlvmv1.Progress{Percent: 100}},
	}, d.Nodes)
	require.False(t, d.Settled())

	for state, settled := range map[flexlvmv1.State]bool{flexlvmv1.StateRunning: true, flexlvmv1.StateFailed: true, flexlvmv1.StateCompleted: true, flexlvmv1.StatePending: false} {
		d.State, d.Message = state, flexlvmv1.MessageSuccess
		require.Equal(t, settled, d.Settled(), state)
	}
	d.State, d.Message = flexlvmv1.StateRunning, "a replica is loaded again"
	require.False(t, d.Settled())
	loading.Generation = 3
	require.Equal(t, flexlvmv1.StatePending, overview.DatasetsOf([]flexlvmv1.VolumeManager{loading})[0].State, "an old status says nothing of a new spec")
}
