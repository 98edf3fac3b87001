//go:build cluster

package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// TestNothingIsLostWithKubeletAndNode runs alone as long as it stops kubelet, the node or the provisioner.
// Its pods and volumes then stay until the parallel tests run. Tests run in the order of their files, so this
// file follows the tests that drain a node or need its room.
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
				_, err := shared.Exec(n.ctx, n.namespace, pod, "true")
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
		g.granted(t)
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
	g.asAsked(t)            // only now, because the provisioner may first have to wait for its lease
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
