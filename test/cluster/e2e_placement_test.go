//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// placementClass reclaims space immediately.
const placementClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: placement}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: ` + placementGroup + `, reclaim: immediate}
`

// placed returns a pod with a claim for each size and a preference for a node.
func placed(name, rather string, sizes ...string) string {
	var claims, mounts, volumes strings.Builder
	for i, size := range sizes {
		claim := fmt.Sprintf("%s-%d", name, i)
		fmt.Fprintf(&claims, "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s}\nspec: {storageClassName: placement, accessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}}\n---\n", claim, size)
		fmt.Fprintf(&mounts, "{name: %s, mountPath: /%s},", claim, claim)
		fmt.Fprintf(&volumes, "{name: %s, persistentVolumeClaim: {claimName: %s}},", claim, claim)
	}
	affinity := ""
	if rather != "" {
		affinity = "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchFields: [{key: metadata.name, operator: In, values: [" + rather + "]}]}}]}}\n  "
	}
	return fmt.Sprintf(`%sapiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  %shostNetwork: true # without it, a virtual node takes seconds for the pod's network
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %s, command: [sh, -c, %q], volumeMounts: [%s]}]
  volumes: [%s]
`, claims.String(), name, affinity, cluster.BusyboxImage, cluster.Sleep, mounts.String(), volumes.String())
}

// offered returns the bytes of the CSIStorageCapacity objects of a class, by node.
func (n *tenant) offered(class string) map[string]int64 {
	n.t.Helper()
	room := map[string]int64{}
	out := n.kubectl("-n", "flexlvm-system", "get", "csistoragecapacities", "-o",
		`jsonpath={range .items[?(@.storageClassName=="`+class+`")]}{.nodeTopology.matchLabels.kubernetes\.io/hostname} {.capacity}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		var node, capacity string
		_, err := fmt.Sscan(line, &node, &capacity)
		require.NoError(n.t, err, line)
		q, err := resource.ParseQuantity(capacity)
		require.NoError(n.t, err, line)
		room[node] = q.Value()
	}
	return room
}

// On two real nodes with groups of 16 GiB, a pod is scheduled where its claims fit even if it prefers
// another node, to the node with more free space if it has no preference, and with all of its claims or
// not at all. The test runs alone, because the scheduler's scores depend on other tests' pods, too.
func TestPodsGoWhereTheirClaimsFit(t *testing.T) {
	n := newTenant(t, "placement")
	require.NoError(t, n.apply(placementClass))
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(n.ctx), "delete", "storageclass", "placement", "--ignore-not-found")
		require.NoError(t, err, out)
	})
	node := func(pod string) string {
		n.ready(pod)
		return n.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
	}
	// The scheduler takes the node whose capacity it sees first, whatever the pod prefers.
	await.Until(t, patience, func() string {
		offers := n.kubectl("-n", "flexlvm-system", "get", "csistoragecapacities", "-o", "jsonpath={.items[?(@.storageClassName==\"placement\")].metadata.name}")
		return await.Missing(len(strings.Fields(offers)) == 2, "these are the class's capacities: %s", offers)
	})
	require.NoError(t, n.apply(placed("first", "node1", "10Gi")))
	require.Equal(t, "node1", node("first"))
	require.NoError(t, n.apply(placed("second", "node1", "8Gi")))
	require.Equal(t, "node2", node("second"), "there is no room on node1 for another")
	// The scheduler's capacities of both nodes may be outdated.
	await.Until(t, patience, func() string {
		room := n.offered("placement")
		return await.Missing(room["node1"] < 6<<30 && room["node1"] < room["node2"] && room["node2"] < 8<<30, "the nodes offer %v", room)
	})
	require.NoError(t, n.apply(placed("third", "", "2Gi")))
	require.Equal(t, "node2", node("third"), "it is the emptier")

	require.NoError(t, n.apply(placed("pair", "", "3Gi", "3Gi")))
	await.Until(t, patience, func() string {
		events := n.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.message}{'\\n'}{end}")
		refused := strings.Contains(events, "has no room for the claims pair-0, pair-1 together") || strings.Contains(events, "has no room for the claims pair-1, pair-0 together")
		return await.Missing(refused, "no event says that there is no room for both claims: %s", events)
	})
	require.Equal(t, "Pending Pending", n.kubectl("get", "pvc", "pair-0", "pair-1", "-o", "jsonpath={.items[*].status.phase}"), "none of its claims has a volume")

	n.kubectl("delete", "pod/second", "pvc/second-0")
	require.Equal(t, "node2", node("pair"), "once there is room for both")

	n.kubectl("delete", "pods,pvc", "--all")
	await.Until(t, patience, func() string {
		left := kubectl(n.ctx, t, "get", "pv")
		return await.Missing(!strings.Contains(left, " placement "), "PersistentVolumes are left: %s", left)
	})
}
