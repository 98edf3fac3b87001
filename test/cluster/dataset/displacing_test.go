//go:build cluster

package dataset_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// testDisplacing checks that on a node with space for only one more dataset, one that displaces idle
// ones gets the space of a dataset without readers, and not of one with readers. The displaced dataset
// comes back when a pod needs it and there is space.
func (k *kubelets) testDisplacing(t *testing.T) {
	read, s := k.namespace(t, "displaced-not"), k.namespace(t, "displacing")
	room := func(size string) {
		storage, amount := &flexlvmv1.NodeStorage{}, resource.MustParse(size)
		require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: "sim-6"}, storage))
		pool := &storage.Status.Pools[0]
		pool.Size, pool.Free, pool.Allocatable = amount, amount, amount
		require.NoError(t, k.client.Status().Update(t.Context(), storage))
	}
	k.ownNode(t, "sim-6")
	room("13Gi") // for two volumes of 5Gi
	only := tolerating + `, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: sim, operator: In, values: [sim-6]}]}]}}`
	idle := with(s3, "{aws", `{displaceable: "true", aws`, "replicas: 1", "replicas: 1, "+only)
	read.make("v", idle)
	read.status("v", flexlvmv1.StateRunning, "success")
	read.consumer("v-a")
	require.Equal(t, "sim-6", read.nodeOf("consumer"))
	s.make("v", idle)
	s.status("v", flexlvmv1.StateRunning, "success")

	s.make("w", with(s3, "{aws", "{displaces: Idle, aws", "replicas: 1", "replicas: 1, "+only))
	s.status("w", flexlvmv1.StateRunning, "success")
	got := s.get("v").Status.Volumes[0]
	require.Equal(t, flexlvmv1.ReplicaDisplaced, got.Nodes[0].State)
	require.Contains(t, got.Message, "dataset displacing/w/a has used its room on node sim-6")
	require.NotContains(t, s.claims(), "v-a-0")
	s.told("w", "Displaces", "the eviction of claim v-a-0 of dataset displacing/v/a, which no pod reads, is requested")
	s.told("v", "ReplicaDisplaced", "dataset displacing/w/a needs its room on node sim-6, and no pod reads it")
	require.Equal(t, []string{"sim-6"}, read.labelled("v"))

	// A pod needs the dataset, which requests space. It gets none, because it displaces nothing.
	s.consumer("v-a")
	s.status("v", flexlvmv1.StatePending, "its loader cannot be scheduled: ")
	s.remove(s.get("w"))
	s.status("v", flexlvmv1.StateRunning, "success")
	require.Equal(t, "sim-6", s.nodeOf("consumer"))

	for _, each := range []*space{read, s} {
		each.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: each.name, Name: "consumer"}})
		each.remove(each.get("v"))
	}
	for _, each := range []*space{read, s} {
		each.nothingLeft()
	}
	await.Until(t, longest, func() string {
		return await.Missing(!strings.Contains(k.metrics(t), `dataset_namespace="displacing"`), "its metrics are still there")
	})
}
