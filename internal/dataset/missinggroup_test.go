package dataset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A node whose volume group is missing loses the label, and nothing of the replica is deleted: the group may be late.
func TestNoLabelWithoutTheVolumeGroup(t *testing.T) {
	s := newStage(t)
	r := s.completed(0)
	r.GroupMissing = true
	s.completed(1)
	out := s.requirePlan("unlabel node-0")
	require.EqualValues(t, 1, out.Status.ReadyReplicas)
	require.Equal(t, flexlvmv1.ReplicaWaiting, out.Status.Nodes[0].State)
	require.Contains(t, out.Status.Nodes[0].Message, "node node-0 does not report the volume group that it is in")
	require.Contains(t, out.Status.Nodes[0].Message, "delete claim v-a-0, and it is loaded again")
	s.Labelled = []string{"node-1"}
	s.requirePlan()

	r.GroupMissing = false
	out = s.requirePlan("label node-0")
	require.EqualValues(t, 2, out.Status.ReadyReplicas)
}

// What consumers wrote is not loaded again.
func TestNoLabelWithoutTheVolumeGroupOfWhatConsumersWrite(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1 })
	s.completed(0).GroupMissing = true
	out := s.requirePlan("unlabel node-0")
	require.Contains(t, out.Status.Nodes[0].Message, "delete claim v-a-0, which gives up what consumers wrote")
}

// A streaming replica is not labelled either.
func TestNoLabelWithoutTheVolumeGroupWhileStreaming(t *testing.T) {
	s := newStage(t)
	s.Source.Stream = true
	s.Replicas[1] = &Replica{}
	r := s.loading(0, corev1.PodRunning)
	r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, out := s.plan()
	require.Equal(t, flexlvmv1.ReplicaStreaming, out.Status.Nodes[0].State)
	r.GroupMissing = true
	_, out = s.plan()
	require.Equal(t, flexlvmv1.ReplicaLoading, out.Status.Nodes[0].State)
	require.Contains(t, out.Status.Nodes[0].Message, "node node-0 does not report the volume group that it is in")
	require.Zero(t, out.Status.ReadyReplicas)
}

// Nor do other replicas wait until they can be copied from it.
func TestNoCopiesWithoutTheVolumeGroup(t *testing.T) {
	s := newRack(t, 2)
	r := s.indexed(0)
	r.Job = nil
	s.claimed(1)
	s.requirePlan("create job v-a-0") // it is to serve
	r.GroupMissing = true
	s.requirePlan("unlabel node-0", "create job v-a-1")
}

// A loader without its volume group may never start, so the loaders of other replicas do not wait for its end.
func TestLoadersPassANodeWithoutTheVolumeGroup(t *testing.T) {
	s := newRack(t, 2, "sourceLoaders", "1")
	r := s.loading(0, corev1.PodPending)
	s.claimed(1)
	s.requirePlan()
	r.GroupMissing = true
	out := s.requirePlan("create job v-a-1")
	require.Contains(t, out.Status.Nodes[0].Message, "node node-0 does not report the volume group that it is in")
}

// A loader is not started on such a node, although its replica could be copied, and takes no place of another.
func TestNoLoaderStartsWithoutTheVolumeGroup(t *testing.T) {
	s := newRack(t, 2)
	s.indexed(0).Job = nil
	r := s.claimed(1)
	r.GroupMissing = true
	out := s.requirePlan()
	require.Equal(t, flexlvmv1.ReplicaWaiting, out.Status.Nodes[1].State)
	require.Contains(t, out.Status.Nodes[1].Message, "node node-1 does not report the volume group that it is in")

	s = newRack(t, 2, "sourceLoaders", "1")
	s.claimed(0).GroupMissing = true
	s.claimed(1)
	s.requirePlan("create job v-a-1")
}

// Once the volume group is there again, the message that it was missing is not taken over from the last status.
func TestMessageOfALoaderWhoseVolumeGroupIsBack(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := s.loading(0, corev1.PodRunning)
	r.Report = &protocol.Status{State: protocol.StateFetching, FilesDone: 1, FilesTotal: 2, BytesDone: 10, BytesTotal: 40}
	s.at(now)
	r.Report, r.GroupMissing = nil, true
	got, _ := s.at(now.Add(stalls))
	require.Contains(t, got.Nodes[0].Message, "node node-0 does not report the volume group that it is in")
	r.GroupMissing = false
	got, _ = s.at(now.Add(stalls + time.Second))
	require.Equal(t, "nothing has arrived since 2026-11-21T16:00:00Z", got.Nodes[0].Message)
	require.EqualValues(t, 10, got.Nodes[0].Progress.Bytes)
}

// Nor do visits.
func TestVisitsPassANodeWithoutTheVolumeGroup(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 2, "10m" })
	for i := range 2 {
		s.holding(i, "one").Job = nil
	}
	r := s.Replicas[0]
	r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
	r.Pod = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-0"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	s.requirePlan()
	r.GroupMissing = true
	out := s.requirePlan("unlabel node-0", "create job v-a-1")
	require.Contains(t, out.Status.Nodes[0].Message, "node node-0 does not report the volume group that it is in")
	require.NotContains(t, out.Status.Nodes[0].Message, "does not respond")
}

// The volume group is missing only if the node reports others, or that it has none.
func TestGroupMissing(t *testing.T) {
	object := func(changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		want := ledger.Want{PV: "pvc-1", Spec: volume.Spec{
			Group: "flexlvm", Name: "ds-0123456789abcdef", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Dataset, Cluster: ledgertest.Cluster,
		}}
		return ledgertest.PersistentVolume("node-0", want, changes...)
	}
	reports := func(uuids ...string) *flexlvmv1.NodeStorage {
		out := &flexlvmv1.NodeStorage{}
		for _, uuid := range uuids {
			out.Status.Pools = append(out.Status.Pools, flexlvmv1.Pool{Name: "flexlvm", UUID: uuid})
		}
		return out
	}
	ready := func(reason string) *flexlvmv1.NodeStorage {
		out := reports()
		out.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Reason: reason}}
		return out
	}
	const another = "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	for name, tt := range map[string]struct {
		report  *flexlvmv1.NodeStorage
		volume  *corev1.PersistentVolume
		missing bool
	}{
		"it is there":        {reports(another, ledgertest.GroupUUID), object(), false},
		"another machine":    {reports(another), object(), true},
		"no report":          {nil, object(), false},
		"no group at all":    {ready(flexlvmv1.ReasonNoPools), object(), true},
		"nothing is known":   {reports(), object(), false},
		"LVM has failed":     {ready(flexlvmv1.ReasonLVMFailed), object(), false},
		"no volume":          {reports(another), nil, false},
		"any group":          {reports(another), object(func(v *corev1.PersistentVolume) { delete(v.Spec.FlexVolume.Options, volume.OptionGroupUUID) }), false},
		"of a later release": {reports(another), object(func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Options["newer"] = "x" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &reconciler{Config: Config{Report: func(string) *flexlvmv1.NodeStorage { return tt.report }}}
			node := ""
			if tt.volume != nil {
				node = "node-0"
			}
			require.Equal(t, tt.missing, r.groupMissing(node, tt.volume))
		})
	}
	require.False(t, (&reconciler{}).groupMissing("node-0", object()))
}

// A machine was replaced under the name of its node. Its report ends the label, and the replica of the new disks begins
// it again.
func TestReconcileOfAReplacedMachine(t *testing.T) {
	r := newRig(t)
	r.manager(1)
	r.runs()
	labels := func() map[string]string {
		node := &corev1.Node{}
		require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Name: "node-0"}, node))
		return node.Labels
	}
	require.Len(t, labels(), 1)
	object := &corev1.PersistentVolume{}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, object))
	written := ledgertest.PersistentVolume("node-0", ledger.Want{PV: "pvc-1", Spec: volume.Spec{
		Group: "flexlvm", Name: replica.VolumeName(object.Labels[replica.LabelDataset]), Size: volume.GiB, Layout: volume.Linear, Kind: volume.Dataset, Cluster: ledgertest.Cluster,
	}})
	object.Spec.PersistentVolumeSource, object.Spec.Capacity, object.Spec.NodeAffinity = written.Spec.PersistentVolumeSource, written.Spec.Capacity, written.Spec.NodeAffinity
	for key, value := range written.Annotations {
		if object.Annotations[key] == "" {
			object.Annotations[key] = value
		}
	}
	require.Equal(t, "node-0", object.Labels[pv.LabelNode])
	require.NoError(t, r.client.Update(t.Context(), object))

	uuid := "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	r.Report = func(string) *flexlvmv1.NodeStorage {
		return ledgertest.Report("node-0", volume.GiB, func(p *flexlvmv1.Pool) { p.UUID = uuid })
	}
	for range 3 {
		require.NoError(t, r.look())
	}
	require.Empty(t, labels())
	require.Contains(t, r.get().Status.Volumes[0].Message, "does not report the volume group")
	require.Empty(t, r.deleted())

	uuid = ledgertest.GroupUUID
	for range 3 {
		require.NoError(t, r.look())
	}
	require.Len(t, labels(), 1)
}
