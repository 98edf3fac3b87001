package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// newDisplaced returns a rig with a running dataset of two replicas, of which one was displaced.
func newDisplaced(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	v := volumeOf(flexlvmv1.SourceS3, 2, s3Options(options{"displaceable": "true"}))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v", Generation: 1}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "v-a-1"}
	require.NoError(t, r.client.Delete(t.Context(), &batchv1.Job{ObjectMeta: meta}))
	require.NoError(t, r.client.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: meta}))
	vm = r.get()
	vm.Status.Volumes[0].Nodes[1].State = flexlvmv1.ReplicaDisplaced
	require.NoError(t, r.client.Status().Update(t.Context(), vm))
	require.NoError(t, r.look())
	require.Equal(t, flexlvmv1.ReplicaDisplaced, r.get().Status.Volumes[0].Nodes[1].State)
	require.Equal(t, flexlvmv1.StateRunning, r.get().Status.State)
	r.done = nil
	return r
}

// The parameters of a StorageClass are immutable, so an administrator deletes and recreates it to change them.
// Meanwhile replicas serve, and the displaced one stays recorded.
func TestDisplacedWhileTheClassIsMissing(t *testing.T) {
	r := newDisplaced(t)
	class := r.classes.List()[0]
	require.NoError(t, r.classes.Delete(class))
	for range 2 {
		require.NoError(t, r.look())
		status := r.get().Status
		require.Equal(t, flexlvmv1.StateRunning, status.State, "one replica serves")
		require.Contains(t, status.Volumes[0].Message, "does not exist")
		require.EqualValues(t, 1, status.Volumes[0].ReadyReplicas)
		require.NotNil(t, status.Volumes[0].VolumeSource)
	}
	require.NoError(t, r.classes.Add(class))
	for range 2 {
		require.NoError(t, r.look())
		require.Equal(t, flexlvmv1.ReplicaDisplaced, r.get().Status.Volumes[0].Nodes[1].State)
	}
	require.Empty(t, r.done)
}

func TestDisplacedWhileAnOptionIsMisspelt(t *testing.T) {
	r := newDisplaced(t)
	edit := func(more options) {
		vm := r.get()
		vm.Generation++
		vm.Spec.Volumes[0].Options = s3Options(more)
		require.NoError(t, r.client.Update(t.Context(), vm))
		for range 2 {
			require.NoError(t, r.look())
		}
	}
	edit(options{"displaceable": "true", "evictionPolicy": "Lru"})
	require.Equal(t, flexlvmv1.StateFailed, r.get().Status.State)
	require.Zero(t, r.get().Status.Volumes[0].ReadyReplicas)
	edit(options{"displaceable": "true"})
	require.Equal(t, flexlvmv1.ReplicaDisplaced, r.get().Status.Volumes[0].Nodes[1].State)
	require.Empty(t, r.done)
}

// invalidSpec keeps the record of an upload only if there is no replica, because consumers may have written to it
// since.
func TestInvalidSpecKeepsTheRecord(t *testing.T) {
	s := newStage(t)
	failures := []flexlvmv1.ReplicaFailure{{Attempt: "x", Replicas: "50-51"}}
	s.Owner.Status.Volumes = []flexlvmv1.VolumeStatus{{ID: "a", Uploaded: "s3://out/", Failures: failures, States: map[flexlvmv1.ReplicaState]int32{flexlvmv1.ReplicaFailed: 2}}}
	status := invalidSpec(s.Observed, errChanged).Status
	require.Equal(t, failures, status.Failures)
	require.EqualValues(t, 2, status.States[flexlvmv1.ReplicaFailed])
	require.Equal(t, "s3://out/", status.Uploaded)
	s.completed(0)
	require.Empty(t, invalidSpec(s.Observed, errChanged).Status.Uploaded)
}
