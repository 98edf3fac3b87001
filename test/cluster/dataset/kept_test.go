//go:build cluster

package dataset_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
)

// testKept checks that a node that loses a label for a while, as when a program that labels nodes
// restarts, keeps its replica. After an edit that the node does not match, the replica is removed.
func (k *kubelets) testKept(t *testing.T) {
	s := k.namespace(t, "kept")
	k.kubectl(t, "label", "node", "sim-1", "sim-2", "gpu=yes")
	gpu := `nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: In, values: ["yes"]}]}]}}`
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+gpu))
	s.status("v", flexlvmv1.StateRunning, "success")
	before := s.claims()
	k.kubectl(t, "label", "node", "sim-1", "sim-2", "gpu-")
	message := func(holds bool) {
		t.Helper()
		await.Until(t, longest, func() string {
			for _, n := range s.get("v").Status.Volumes[0].Nodes {
				if strings.Contains(n.Message, "has not matched nodeAffinity since") != holds {
					return "the status says of " + n.Node + ": " + n.Message
				}
			}
			return ""
		})
		require.Len(t, s.labelled("v"), 2)
		require.Equal(t, flexlvmv1.StateRunning, s.get("v").Status.State)
		for name, claim := range s.claims() {
			require.Equal(t, before[name].UID, claim.UID, name)
		}
	}
	message(true)
	k.kubectl(t, "label", "node", "sim-1", "sim-2", "gpu=yes")
	message(false)
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+with(gpu, `["yes"]`, `["no"]`)))
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 0, "still labelled") })
	k.kubectl(t, "label", "node", "sim-1", "sim-2", "gpu-")
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testQuota checks that the status reports what a quota refuses, and that the VolumeManager's settings
// for its loaders fix it.
func (k *kubelets) testQuota(t *testing.T) {
	s := k.namespace(t, "quota")
	require.NoError(t, s.apply(t, "{apiVersion: v1, kind: ResourceQuota, metadata: {name: limits, namespace: quota}, spec: {hard: {limits.cpu: \"4\", limits.memory: 4Gi}}}"))
	await.Until(t, longest, func() string {
		used := k.kubectl(t, "get", "resourcequota", "limits", "-n", s.name, "-o", "jsonpath={.status.used}")
		return await.Missing(strings.Contains(used, "limits.cpu"), "the quota is not counted yet: %q", used)
	})
	s.make("v", s3)
	got := s.status("v", flexlvmv1.StatePending, "its loader's pod is refused: ")
	require.Contains(t, got.Volumes[0].Message, "must specify limits.cpu")
	s.patch("v", `{"spec":{"loader":{"resources":{"limits":{"cpu":"1","memory":"512Mi"}},"env":[{"name":"HTTPS_PROXY","value":"http://proxy:3128"}]}}}`)
	s.status("v", flexlvmv1.StateRunning, "success")
	c := containerOf(s.job("v-a-0"))
	require.Equal(t, "512Mi", c.Resources.Limits.Memory().String())
	require.Equal(t, "http://proxy:3128", c.Env[0].Value)
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testMany checks that the status of thousands of replicas without nodes fits into an object, and that
// no more loaders are created than may cause new nodes.
func (k *kubelets) testMany(t *testing.T) {
	s := k.namespace(t, "many")
	const of = "replicas: 5000"
	s.make("v", with(s3, "replicas: 1", of), with(s3, "id: a", "id: b", "replicas: 1", of))
	got := s.status("v", flexlvmv1.StateFailed, "replicas [5000] greater than number of nodes [")
	for _, v := range got.Volumes {
		require.Len(t, v.Nodes, 50)
		total := int32(0)
		for _, n := range v.States {
			total += n
		}
		require.EqualValues(t, 5000, total)
	}
	truncated := k.kubectl(t, "get", "vm", "v", "-n", s.name, "-o", `jsonpath={.status.conditions[?(@.type=="Truncated")].message}`)
	require.Equal(t, "50 of the replicas of a, b are listed by name; states counts all of them", truncated)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	require.Less(t, len(text), 64<<10)
	claims := 0
	for _, c := range s.claims() {
		if c.Labels[replica.LabelDataset] != "" {
			claims++
		}
	}
	require.Less(t, claims, 2*(len(nodes)+15))
	s.remove(s.get("v"))
	s.nothingLeft()
}
