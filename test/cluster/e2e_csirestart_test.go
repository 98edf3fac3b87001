//go:build cluster

package cluster_test

// The CSI driver is restarted and away while pods start, run and end.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// restartCSI starts a rollout of the CSI driver's DaemonSet.
func (n *tenant) restartCSI() {
	n.t.Helper()
	n.kubectl("-n", "flexlvm-system", "rollout", "restart", "daemonset/flexlvm-csi")
}

func (n *tenant) csiIsThere() {
	n.t.Helper()
	n.kubectl("-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-csi", patiently)
}

// TestCSIDriverComesAndGoes is not parallel, because other tests grow volumes, which is delayed while
// the driver is away.
func TestCSIDriverComesAndGoes(t *testing.T) {
	t.Run("upgrade", testCSIUpgradeUnderLoad)
	t.Run("away", testCSIAway)
}

// No call is lost during an upgrade of the driver, whether pods start or end.
func testCSIUpgradeUnderLoad(t *testing.T) {
	pods := 10
	if inFull() {
		pods = 20
	}
	n := newCSITenant(t, "csi-upgrade")
	var manifests []string
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		manifests = append(manifests, claimOf("flexlvm-csi", name, "32Mi"),
			pod{name: name, claim: name, node: fmt.Sprintf("node%d", 1+i%2), command: "echo " + name + " >>/data/starts"}.manifest())
	}
	begun := time.Now()
	require.NoError(t, n.apply(strings.Join(manifests, "\n---\n")))
	// From the first mount on, the driver is replaced repeatedly, and then stays: after some failures
	// kubelet retries only every two minutes, and on a slow machine the driver would be away half of
	// the time.
	for replaced, waiting := 0, true; waiting && replaced < 10; replaced++ {
		n.restartCSI()
		n.csiIsThere()
		waiting = strings.Contains(n.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.phase}"), "Pending")
	}
	n.ready()
	t.Logf("%d pods were ready after %s", pods, time.Since(begun).Round(time.Second))
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		// A pod without a probe is Ready before its shell has written. 4096 is the block size.
		require.Equal(t, fmt.Sprintf("%s\n4096 %d\n", name, 32<<20/4096),
			n.exec(name, "until [ -s /data/starts ]; do sleep 0.2; done; cat /data/starts; stat -f -c '%S %b' /data"))
	}
	require.Equal(t, strings.TrimSpace(strings.Repeat("0 ", pods)), n.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"))

	volumes := strings.Fields(n.kubectl("get", "pvc", "-o", "jsonpath={.items[*].spec.volumeName}"))
	require.Len(t, volumes, pods)
	n.restartCSI() // first, because the pods end at once
	n.kubectl("delete", "pods", "--all", "--wait=false")
	await.Until(t, patience, func() string {
		left := n.kubectl("get", "pods", "-o", "name")
		return await.Missing(left == "", "these pods do not end: %s", left)
	})
	n.csiIsThere()
	// The pods' objects were deleted immediately. Kubelet retries failed unmounts with backoff.
	for _, node := range []string{"node1", "node2"} {
		await.Until(t, patience, func() string {
			mounts := onNode(n.ctx, t, node, "cat /proc/self/mountinfo")
			for _, v := range volumes {
				if strings.Contains(mounts, v) {
					return fmt.Sprintf("%s is still mounted on %s", v, node)
				}
			}
			return ""
		})
	}
}

// While the driver is away, running pods are not affected, and starting pods wait for it.
func testCSIAway(t *testing.T) {
	n := newCSITenant(t, "csi-away")
	n.run(claimOf("flexlvm-csi", "runs", "32Mi"), pod{name: "runs", claim: "runs", node: "node1"}.manifest())
	n.exec("runs", "echo before >/data/file")
	n.kubectl("-n", "flexlvm-system", "patch", "daemonset", "flexlvm-csi", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"flexlvm.io/nowhere":"true"}}}}}`)
	back := func() {
		n.kubectl("-n", "flexlvm-system", "patch", "daemonset", "flexlvm-csi", "--type=json", "-p", `[{"op":"remove","path":"/spec/template/spec/nodeSelector/flexlvm.io~1nowhere"}]`)
	}
	defer func() {
		if t.Failed() {
			back()
		}
	}()
	await.Until(t, patience, func() string {
		there := n.kubectl("-n", "flexlvm-system", "get", "daemonset", "flexlvm-csi", "-o", "jsonpath={.status.currentNumberScheduled} {.status.numberMisscheduled}")
		return await.Missing(there == "0 0", "the driver is still there: %s", there)
	})
	n.exec("runs", "echo away >>/data/file; sync -f /data")
	require.Contains(t, n.execFails("runs", "dd if=/dev/zero of=/data/fill bs=64k"), "No space left on device")
	n.exec("runs", "rm /data/fill")
	require.NoError(t, n.apply(claimOf("flexlvm-csi", "starts", "32Mi")+"\n---\n"+pod{name: "starts", claim: "starts", node: "node1"}.manifest()))
	n.told("starts", "FailedMount", "flexlvm.io")
	back()
	n.csiIsThere()
	n.ready()
	require.Equal(t, "before\naway\n", n.exec("runs", "cat /data/file"))
	require.Equal(t, "0 0", n.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"))
}
