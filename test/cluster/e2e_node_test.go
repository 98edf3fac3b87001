//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// TestNothingIsLostWithKubeletAndNode runs alone as long as it stops kubelet, the node or the provisioner.
func TestNothingIsLostWithKubeletAndNode(t *testing.T) {
	const node = growthNode
	g, n := newGrowths(t), newTenant(t, "survive")
	n.run(claim("data", "300Mi"), pod{name: "main", claim: "data", node: node, command: "date >>/data/starts"}.manifest())
	sum := n.exec("main", "dd if=/dev/urandom of=/data/random bs=1M count=10 2>/dev/null; sync -f /data; md5sum /data/random")
	// Beside it a raw block volume of the CSI driver.
	n.installCSI()
	n.run(claimOf("flexlvm-csi", "raw", "32Mi", "volumeMode: Block"), devicePod("raw", "raw", node))
	raw := n.fillDevice("raw")
	// All with growths that cannot be done, which keep no pod from starting.
	n.ask("data", "400Ti")
	await.Until(t, patience, func() string { // Kubernetes retries, and removes the condition meanwhile
		says := n.growth("data")
		return await.Missing(strings.Contains(says, "cannot grow from 300Mi to 400Ti"), "the claim says %q", says)
	})
	starts := 1 // of its container
	check := func() {
		t.Helper()
		n.written("main", "/data/starts", starts)
		out := n.exec("main", "md5sum /data/random; wc -l </data/starts; stat -f -c '%S %b' /data")
		require.True(t, strings.HasPrefix(out, sum), "%s and not %s", out, sum)
		lines := strings.Split(out, "\n")
		require.EqualValues(t, starts, number(t, lines[1]))
		require.EqualValues(t, 300<<20, bytesIn(t, lines[2]))
		require.Equal(t, raw, n.sumDevice("raw"))
		n.requireDevice("raw", 32<<20, 8<<20)
	}
	restarted := func() {
		t.Helper()
		for _, pod := range []string{"main", "raw"} {
			require.Eventually(t, func() bool {
				_, err := shared.Kubectl(n.ctx, "-n", n.namespace, "exec", pod, "--", "true")
				return err == nil
			}, patience, time.Second)
		}
	}

	bootID := func() string { return onNode(n.ctx, t, node, "cat /proc/sys/kernel/random/boot_id") }

	t.Run("kubelet restart", func(t *testing.T) {
		before := onNode(n.ctx, t, node, "pidof kubelet")
		onNode(n.ctx, t, node, "kill -9 $(pidof kubelet)")
		require.Eventually(t, func() bool {
			now, err := shared.Node(n.ctx, node, "pidof", "kubelet")
			return err == nil && now != before
		}, patience, time.Second)
		restarted()
		check()
		// kubelet still knows the volume: another pod mounts it and ends.
		n.run(pod{name: "other", claim: "data"}.manifest())
		n.kubectl("delete", "pod", "other")
		check()
	})
	t.Run("reboot", func(t *testing.T) {
		before := bootID()
		onNode(n.ctx, t, node, "echo kept >/var/kept") // without sync, as the reboot is clean
		require.NoError(t, shared.Reboot(n.ctx, node))
		require.NotEqual(t, before, bootID())
		require.Equal(t, "kept\n", onNode(n.ctx, t, node, "cat /var/kept"))
		restarted()
		starts++
		check()
		g.started(t)
		g.asAsked(t)
	})
	t.Run("power cut", func(t *testing.T) {
		before := bootID()
		n.exec("main", "sync")
		require.NoError(t, shared.PowerCut(n.ctx, node))
		states, err := shared.Status(n.ctx)
		require.NoError(t, err)
		require.Contains(t, states, cluster.Status{Name: node, Node: true, Ready: true, Boot: strings.TrimSpace(before)},
			"it does not run; the API does not know yet")
		require.NoError(t, shared.PowerOn(n.ctx, node))
		require.NotEqual(t, before, bootID())
		restarted()
		starts++
		check()
		g.started(t)
	})
	t.Run("the provisioner is killed", func(t *testing.T) {
		g.provisionerKilled(t)
		g.madeAgain(t)
	})

	slots.Parallel(t, 1000) // before the others, because its deadline has begun
	t.Run("the request is lowered", func(t *testing.T) {
		g.lowered(t)
		n.run(pod{name: "again", claim: "data"}.manifest())
		n.ask("data", "350Mi")
		n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=350Mi", patiently)
		total, _ := n.df("again")
		require.EqualValues(t, 350<<20, total)
		n.kubectl("delete", "pod", "again")
	})
	t.Run("the pod's end", func(t *testing.T) {
		volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
		mounted := func() bool {
			return strings.Contains(onNode(n.ctx, t, node, "cat /proc/self/mountinfo"), "/volumes/flexlvm.io~flexlvm/"+volume+" ")
		}
		require.True(t, mounted())
		n.kubectl("delete", "pod", "main", "raw")
		await.Until(t, patience, func() string { return await.Missing(!mounted(), "%s is still mounted", volume) })
		await.Until(t, patience, func() string {
			left := onNode(n.ctx, t, node, "ls /dev/mapper")
			return await.Missing(!strings.Contains(left, "flexlvm-block-"), "still handed out: %s", left)
		})
		require.Contains(t, onNode(n.ctx, t, node, driver+" volumes list"), "ready")
	})
}

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
        command: [sleep, "86400"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: flexlvm
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
`, cluster.BusyboxImage)))
	ready := func() string {
		t.Helper()
		n.made("web-0")
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
	n.execFails("web-0", "cat /data/file")
	require.NotEqual(t, volume, n.kubectl("get", "pvc", "data-web-0", "-o", "jsonpath={.spec.volumeName}"))
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
		n.kubectl("wait", "--for=condition=Ready", "pod/data-pod", patiently)
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
			n.made(pod)
			require.Equal(t, pod+"\n"+pod+"\n", n.written(pod, "/data/owner", 2), "a replica finds its own data again")
			total, _ := n.df(pod)
			require.EqualValues(t, 512<<20, total)
		}
		require.Equal(t, nodes, n.kubectl("get", "pods", "-l", "app=shards", "-o", "jsonpath={.items[*].spec.nodeName}"))
	})
}

// The API server accepts all shipped manifests unchanged, and applying them again changes nothing.
func TestShippedManifestsAreValid(t *testing.T) {
	install(t)
	ctx := deadline(t, patience)
	var folders int
	err := filepath.WalkDir(shipped(t, "installer"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		folders++
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.Contains(string(content), "kind: Component") {
			return nil // it is not usable alone
		}
		kubectl(ctx, t, "apply", "--dry-run=server", "--validate=strict", "-k", filepath.Dir(path))
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, folders)
	require.Empty(t, await.Changed(kubectl(ctx, t, "apply", "--validate=strict", "-f", installer(ctx, t, shipped(t, "installer")))))
}
