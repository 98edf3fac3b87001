//go:build cluster

package cluster_test

// The CSI driver comes and goes, while pods start, run and end.

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

func (n *tenant) csiIsThere() {
	n.t.Helper()
	n.kubectl("-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-csi", "--timeout=240s")
}

// While the driver is away, pods that run do not notice, and pods that start wait for it. It is
// no parallel test: others grow volumes, which is put off where the driver stays away.
func TestCSIAway(t *testing.T) {
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
	n.exec("runs", "echo away >>/data/file; sync")
	require.Contains(t, n.execFails("runs", "dd if=/dev/zero of=/data/fill bs=64k"), "No space left on device")
	n.exec("runs", "rm /data/fill")
	require.NoError(t, n.apply(claimOf("flexlvm-csi", "starts", "32Mi")+"\n---\n"+pod{name: "starts", claim: "starts", node: "node1"}.manifest()))
	await.Until(t, patience, func() string {
		events := n.kubectl("get", "events", "--field-selector=involvedObject.name=starts,reason=FailedMount", "-o", "jsonpath={.items[*].message}")
		return await.Missing(strings.Contains(events, "flexlvm.io"), "kubelet says %q", events)
	})
	back()
	n.csiIsThere()
	n.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=240s")
	require.Equal(t, "before\naway\n", n.exec("runs", "cat /data/file"))
	require.Equal(t, "0 0", n.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"))
}
