//go:build cluster

package dataset_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// testEveryNode checks that each matching node gets a replica, also one that matches later, and that
// the status names a node that takes no loader.
func (k *kubelets) testEveryNode(t *testing.T) {
	s := k.namespace(t, "every-node")
	k.ownNode(t, "sim-5")
	k.kubectl(t, "label", "node", "sim-1", longNode, "ssd=yes")
	ssd := `nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: ssd, operator: In, values: ["yes"]}]}]}}`
	s.make("v", with(s3, "replicas: 1", "replicas: All, "+tolerating+", "+ssd))
	got := s.status("v", flexlvmv1.StateRunning, "success")
	require.EqualValues(t, 2, got.Volumes[0].Replicas)
	require.ElementsMatch(t, []string{"sim-1", longNode}, s.labelled("v"))
	require.Contains(t, k.kubectl(t, "get", "vm", "v", "-n", s.name), "2/2")
	before := s.claims()

	k.kubectl(t, "cordon", "sim-5")
	defer k.kubectl(t, "uncordon", "sim-5")
	k.kubectl(t, "label", "node", "sim-2", "sim-5", "ssd=yes")
	defer k.kubectl(t, "label", "node", "sim-1", longNode, "sim-2", "sim-5", "ssd-")
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 3, "labelled: %v", s.labelled("v")) })
	got = s.status("v", flexlvmv1.StateRunning, "1 of 4 nodes Waiting; v-a-3 on node sim-5: its loader cannot be scheduled: ")
	require.Equal(t, "sim-5", got.Volumes[0].Nodes[3].Node)
	require.ElementsMatch(t, []string{"sim-1", longNode, "sim-2"}, s.labelled("v"))

	// Its claim is not bound yet, so it is deleted immediately.
	k.kubectl(t, "label", "node", "sim-5", "ssd-")
	s.status("v", flexlvmv1.StateRunning, "success")
	await.Until(t, longest, func() string {
		_, there := s.claims()["v-a-3"]
		return await.Missing(!there, "the claim for sim-5 is still there")
	})
	k.kubectl(t, "label", "node", "sim-5", "ssd=yes")
	k.kubectl(t, "uncordon", "sim-5")
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 4, "labelled: %v", s.labelled("v")) })
	for name, claim := range before {
		require.Equal(t, claim.UID, s.claims()[name].UID, "%s was loaded again", name)
	}
	// Back to a number of replicas.
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+tolerating+", "+ssd))
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 2, "labelled: %v", s.labelled("v")) })
	s.remove(s.get("v"))
	s.nothingLeft()
}
