//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// The steps of docs/node-loss.md for a node that is drained for a repair, and for a pod that is to
// leave permanently.
func TestDrainedNodeKeepsItsVolumes(t *testing.T) {
	n := newTenant(t, "drain")
	require.NoError(t, n.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: %s
        command: [sh, -c, %q]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: flexlvm
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
`, cluster.BusyboxImage, cluster.Sleep)))
	ready := func() string {
		t.Helper()
		n.ready("web-0")
		return n.kubectl("get", "pod", "web-0", "-o", "jsonpath={.spec.nodeName}")
	}
	node := ready()
	n.exec("web-0", "echo precious >/data/file; sync -f /data")
	volume := n.kubectl("get", "pvc", "data-web-0", "-o", "jsonpath={.spec.volumeName}")
	n.ask("data-web-0", "400Ti") // the growth is refused, and the pod must come back all the same
	await.Until(t, patience, func() string {
		says := n.growth("data-web-0")
		return await.Missing(strings.Contains(says, "cannot grow from 64Mi to 400Ti"), "the claim says %q", says)
	})
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(n.ctx), "uncordon", node)
		require.NoError(t, err, out)
	})

	// The pod's replacement is created immediately, so the scheduler must already have seen that the
	// node is cordoned.
	kubectl(n.ctx, t, "cordon", node)
	kubectl(n.ctx, t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", patiently)
	n.kubectl("wait", "--for=create", "pod/web-0", patiently)
	n.kubectl("wait", "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable", "pod/web-0", patiently)
	require.Equal(t, "Bound "+volume, n.kubectl("get", "pvc", "data-web-0", "-o", "jsonpath={.status.phase} {.spec.volumeName}"))
	require.Contains(t, onNode(n.ctx, t, node, driver+" volumes list"), volume)
	// The node's daemon stays up; it may just have restarted with a node that an earlier test rebooted.
	kubectl(n.ctx, t, "-n", "flexlvm-system", "wait", "--for=jsonpath={.status.numberReady}=2", "daemonset/flexlvm-gc", patiently)
	kubectl(n.ctx, t, "uncordon", node)
	require.Equal(t, node, ready(), "it comes back to its volume")
	require.Equal(t, "precious\n", n.exec("web-0", "cat /data/file"))

	kubectl(n.ctx, t, "cordon", node)
	n.kubectl("delete", "pvc", "data-web-0", "--wait=false")
	n.kubectl("delete", "pod", "web-0")
	require.NotEqual(t, node, ready(), "it has left for good")
	n.exec("web-0", "[ ! -e /data/file ]")
	require.NotEqual(t, volume, n.kubectl("get", "pvc", "data-web-0", "-o", "jsonpath={.spec.volumeName}"))
	n.deleteStatefulSet("web") // its pod would count in the scheduler's scores of the next test
}

func TestExamples(t *testing.T) {
	slots.Parallel(t, 40)
	n := newTenant(t, "examples")
	files, err := filepath.Glob(shipped(t, "examples/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		n.applyExample(filepath.Base(file))
	}

	t.Run("pod.yaml", func(t *testing.T) {
		n.ready("data-pod")
		total, used := n.df("data-pod")
		require.EqualValues(t, 1<<30, total)
		require.Zero(t, used)
	})
	t.Run("statefulset.yaml", func(t *testing.T) {
		n.kubectl("rollout", "status", "statefulset/shards", patiently)
		pods := strings.Fields(n.kubectl("get", "pods", "-l", "app=shards", "-o", "jsonpath={.items[*].metadata.name}"))
		require.Equal(t, []string{"shards-0", "shards-1", "shards-2"}, pods)
		nodes := n.kubectl("get", "pods", "-l", "app=shards", "-o", "jsonpath={.items[*].spec.nodeName}")
		require.Contains(t, nodes, "node1", "the replicas are spread")
		require.Contains(t, nodes, "node2", "the replicas are spread")

		for _, pod := range pods {
			n.written(pod, "/data/owner", 1)
		}
		n.kubectl("delete", "pods", "-l", "app=shards")
		for _, pod := range pods {
			n.ready(pod)
			require.Equal(t, pod+"\n"+pod+"\n", n.written(pod, "/data/owner", 2), "a replica finds its own data again")
			total, _ := n.df(pod)
			require.EqualValues(t, 512<<20, total)
		}
		require.Equal(t, nodes, n.kubectl("get", "pods", "-l", "app=shards", "-o", "jsonpath={.items[*].spec.nodeName}"))
	})
}
