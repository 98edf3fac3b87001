//go:build cluster

package cluster_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// A growth that the node cannot do is reverted through either driver, as kubelet's report says: the pod
// starts with the volume's old size, and the volume grows once the node can do it. Here the node cannot
// write the volume's record, because a directory has the name of its temporary file. That affects no
// other volume.
func TestGrowthIsTakenBack(t *testing.T) {
	slots.Parallel(t, 90)
	n := newCSITenant(t, "takenback")
	classes := []string{"flexlvm", "flexlvm-csi"}
	var claims, pods, taken []string
	for _, class := range classes {
		claims, pods = append(claims, claimOf(class, class, "64Mi")), append(pods, n.small(class))
	}
	n.run(append(claims, pods...)...)
	for _, class := range classes {
		volume := n.kubectl("get", "pvc", class, "-o", "jsonpath={.spec.volumeName}")
		n.becomes(volume, "ready")
		taken = append(taken, "/var/lib/flexlvm/volumes/flexlvm/-"+volume)
	}
	n.kubectl("delete", "pods", "--all")
	for _, class := range classes {
		n.ask(class, "200Mi")
		await.Until(t, patience, func() string {
			says := n.growth(class)
			return await.Missing(strings.HasPrefix(says, "NodeResizePending 64Mi "), "claim %s says %q", class, says)
		})
	}

	onNode(n.ctx, t, "node2", "mkdir "+strings.Join(taken, " "))
	n.run(pods...)
	for _, class := range classes {
		n.told(class, "GrowthWaiting", "does not grow before its new size is on record")
		total, _ := n.df(class)
		require.EqualValues(t, 64<<20, total, class)
	}

	onNode(n.ctx, t, "node2", "rmdir "+strings.Join(taken, " "))
	n.kubectl("delete", "pods", "--all")
	for _, class := range classes {
		await.Until(t, patience, func() string {
			says := n.growth(class)
			return await.Missing(!strings.HasPrefix(says, "ControllerResizeInfeasible "), "claim %s still waits: %q", class, says)
		})
	}
	n.run(pods...) // kubelet grows a volume immediately when it mounts it, and one in use up to a minute and a half later
	for _, class := range classes {
		n.kubectl("wait", "pvc/"+class, "--for=jsonpath={.status.capacity.storage}=200Mi", patiently)
		total, _ := n.df(class)
		require.EqualValues(t, 200<<20, total, class)
	}
}
