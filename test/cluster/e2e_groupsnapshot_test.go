//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// twoClaims returns a pod that mounts two claims at /a and /b.
func twoClaims(name, first, second, command string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 0
  containers:
  - name: shell
    image: %s
    command: [sh, -c, %q]
    volumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /b}]
  volumes:
  - {name: a, persistentVolumeClaim: {claimName: %s}}
  - {name: b, persistentVolumeClaim: {claimName: %s}}
`, name, cluster.BusyboxImage, command+"; "+cluster.Sleep, first, second)
}

// inTurns writes lines to two volumes alternately and syncs each before the next: the second volume is
// never ahead of the first, nor more than one line behind.
var inTurns = `while :; do for v in /a /b; do echo line >>$v/journal; sync $v/journal; done; sleep ` + unhurried("0.5", "0.05") + `; done & true`

// kernelBefore reports whether the nodes' kernel is older than a release, as Debian's is.
func kernelBefore(ctx context.Context, t *testing.T, major, minor int) bool {
	t.Helper()
	var is [2]int
	release := onNode(ctx, t, "node1", "uname -r")
	_, err := fmt.Sscanf(release, "%d.%d", &is[0], &is[1])
	require.NoError(t, err, release)
	return is[0] < major || is[0] == major && is[1] < minor
}

// groupIsRefused checks that no group snapshot is taken on an older kernel, with an error that says so.
func (n *tenant) groupIsRefused(name string) {
	n.t.Helper()
	await.Until(n.t, patience, func() string {
		says := n.kubectl("get", "volumegroupsnapshot", name, "-o", "jsonpath={.status.error.message}")
		return await.Missing(strings.Contains(says, "before Linux 7.3 no snapshot is taken of a file system that is frozen"), "the group says %q", says)
	})
	n.kubectl("delete", "volumegroupsnapshot", name, patiently)
}

// Two volumes are snapshotted at one instant while a program writes to both alternately, and both are
// restored. One source is deleted before its group, the other after it.
func TestGroupSnapshot(t *testing.T) {
	slots.Parallel(t, 109)
	n := snapshotTenant(t, "group-snapshots")
	n.example("group.yaml")
	n.run(twoClaims("shop", "orders", "stock", inTurns))
	lines := func(pod, volume string) int64 {
		return number(t, n.exec(pod, "cat "+volume+"/journal 2>/dev/null | wc -l"))
	}
	await.Until(t, patience, func() string { return await.Missing(lines("shop", "/b") > 5, "next to nothing is written") })
	before := lines("shop", "/a")
	n.example("group-snapshot.yaml")
	if kernelBefore(n.ctx, t, 7, 3) {
		t.Log("the nodes' kernel is older than Linux 7.3: only that no snapshot of a group is taken on it is tested")
		n.groupIsRefused("shop-monday")
		await.Until(t, patience, func() string { return await.Missing(lines("shop", "/b") > before, "the volumes stay frozen") })
		return
	}
	n.kubectl("wait", "volumegroupsnapshot/shop-monday", "--for=jsonpath={.status.readyToUse}=true", patiently)
	after := lines("shop", "/a")
	await.Until(t, patience, func() string { return await.Missing(lines("shop", "/b") > after, "the volumes stay frozen") })
	of := func(claim string) string {
		return n.kubectl("get", "volumesnapshots", "-o", `jsonpath={.items[?(@.spec.source.persistentVolumeClaimName=="`+claim+`")].metadata.name}`)
	}
	names := strings.Fields(n.kubectl("get", "pv", "-l", "flexlvm.io/snapshot-group", "-o", "jsonpath={.items[?(@.spec.claimRef.namespace=='group-snapshots')].metadata.name}"))
	require.Len(t, names, 2)

	n.kubectl("delete", "pod", "shop")
	n.kubectl("delete", "pvc", "orders")
	for _, claim := range []string{"orders", "stock"} {
		n.kubectl("wait", "volumesnapshot/"+of(claim), "--for=jsonpath={.status.readyToUse}=true", patiently)
		require.Equal(t, "shop-monday", n.kubectl("get", "volumesnapshot", of(claim), "-o", "jsonpath={.status.volumeGroupSnapshotName}"))
		require.NoError(t, n.apply(claimOf("flexlvm-snapshots", claim+"-restored", "64Mi", "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: "+of(claim)+"}")))
	}
	n.run(twoClaims("shop-restored", "orders-restored", "stock-restored", "true"))
	first, second := lines("shop-restored", "/a"), lines("shop-restored", "/b")
	t.Logf("of %d to %d lines, one volume was restored with %d and the other with %d", before, after, first, second)
	require.GreaterOrEqual(t, first, before, "what was synced before")
	require.LessOrEqual(t, first, after)
	require.Contains(t, []int64{0, 1}, first-second, "they are of one instant")

	n.kubectl("delete", "volumegroupsnapshot", "shop-monday", patiently)
	for _, name := range names {
		n.kubectl("wait", "pv/"+name, "--for=delete", patiently)
	}
	await.Until(t, patience, func() string {
		left := onNode(n.ctx, t, "node1", "lvs --noheadings -o lv_name "+thinGroup)
		stay := slices.ContainsFunc(names, func(name string) bool { return strings.Contains(left, name) })
		return await.Missing(!stay, "volumes of snapshots stay: %s", left)
	})
	await.Until(t, patience, func() string { // they are removed after their volumes
		left := n.kubectl("get", "volumesnapshots", "-o", "name")
		return await.Missing(left == "", "snapshots of the group stay: %s", left)
	})
	n.kubectl("delete", "pvc", "stock")
	require.Equal(t, second, lines("shop-restored", "/b"))
}
