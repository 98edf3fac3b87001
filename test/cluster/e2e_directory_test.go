//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// Small volumes are directories of one file system. Through either driver their bytes and inodes are
// exact, they grow online, can be undeleted, and are removed if their space is needed. A class that
// does not declare its pods as trusted is refused.
func TestDirectoryVolumes(t *testing.T) {
	slots.Parallel(t, 113)
	n := newCSITenant(t, "small")
	await.Until(t, patience, func() string { // other tests fill the group at times
		out, err := shared.Node(n.ctx, "node2", "sh", "-c", driver+" directories create --pool small --size 64MiB")
		return await.Missing(err == nil, "%v: %s", err, out)
	})
	class := func(name, more string) string {
		return fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {layout: directory, directoryPool: small%s}
---`, name, more)
	}
	require.NoError(t, n.apply(class("small", `, trustPods: "true"`)+class("small-csi", `, trustPods: "true", door: csi, reclaim: immediate`)+class("small-untrusted", "")))
	require.NoError(t, n.apply(claimOf("small-untrusted", "untrusted", "512Ki")+"---"+n.small("untrusted")))
	sum := n.smallVolume("small")
	n.smallVolume("small-csi")
	require.Contains(t, n.kubectl("get", "events", "-o", `jsonpath={.items[?(@.reason=="ProvisioningFailed")].message}`), `trustPods: must be "true" with layout "directory"`)
	n.kubectl("delete", "pod,pvc", "untrusted")
	require.Equal(t, "directory", n.kubectl("get", "nodestorage", "node2", "-o", `jsonpath={.status.pools[?(@.name=="flexlvm:small")].layout}`))

	// Deleted by mistake and undeleted on the node.
	volume := n.kubectl("get", "pvc", "small", "-o", "jsonpath={.spec.volumeName}")
	n.kubectl("delete", "pod,pvc", "small")
	n.becomes(volume, "unreferenced")
	n.kubectl("wait", "--for=delete", "pv/"+volume, patiently) // it is deleted once the node has reported the volume
	require.NoError(t, n.apply(n.onNode2("volumes undelete "+volume+" --claim small --storage-class small")))
	n.run(n.small("small"))
	require.Equal(t, sum, n.exec("small", "md5sum /data/kept"))
	total, _ := n.df("small")
	require.EqualValues(t, 2<<20, total)

	// After forget, the volume is removed when another needs its space, and no other volume is.
	n.kubectl("delete", "pod,pvc", "small")
	kubectl(n.ctx, t, "delete", "pv", volume, patiently)
	n.becomes(volume, "retained")
	await.Until(t, patience, func() string { // kubelet unmounts it only after its pod is gone
		out, err := shared.Node(n.ctx, "node2", driver, "volumes", "forget", volume)
		return await.Missing(err == nil, "%v: %s", err, out)
	})
	n.run(claimOf("small", "large", "59Mi"), n.small("large"))
	require.NotContains(t, n.onNode2("volumes list"), volume)
	require.Equal(t, "kept\n", n.exec("small-csi", "cat /data/word"))

	require.Contains(t, onNode(n.ctx, t, "node2", driver+" directories remove --pool small 2>&1 || true"), "is removed when they are gone")
	n.kubectl("delete", "pod,pvc", "large", "small-csi")
	await.Until(t, patience, func() string { // one is removed immediately, the other because the pool is nearly full
		out, err := shared.Node(n.ctx, "node2", driver, "directories", "remove", "--pool", "small")
		return await.Missing(err == nil, "%v: %s", err, out)
	})
	kubectl(n.ctx, t, "delete", "storageclass/small", "storageclass/small-csi", "storageclass/small-untrusted")
}

// small returns a pod on node2 with the claim of its name.
func (n *tenant) small(name string) string {
	return pod{name: name, claim: name, node: "node2"}.manifest()
}

// smallVolume checks the life of a volume of a class with its pod, which it leaves running. It returns
// the checksum of the file that it leaves there.
func (n *tenant) smallVolume(class string) string {
	t := n.t
	t.Helper()
	require.NoError(t, n.apply(claimOf(class, class, "1Mi")+"---"+n.small(class)))
	n.ready(class)
	total, used := n.df(class)
	require.EqualValues(t, 1<<20, total)
	require.Zero(t, used)
	// XFS subtracts removed files from the count in the background, up to a tick later.
	said := n.exec(class, `i=0; while touch /data/f$i 2>/tmp/why; do i=$((i+1)); done; echo $i; cat /tmp/why; rm /data/f*
		i=0; until touch /data/fill 2>/dev/null || [ $i = 100 ]; do i=$((i+1)); sleep 0.1; done
		dd if=/dev/zero of=/data/fill bs=4k 2>&1 || true; sync -f /data; stat -c 'size %s' /data/fill; rm /data/fill
		echo kept >/data/word; head -c 50000 /dev/urandom >/data/kept; sync -f /data`)
	require.True(t, strings.HasPrefix(said, "63\n"), said) // and the root directory
	require.Equal(t, 2, strings.Count(said, "No space left on device"), said)
	require.Contains(t, said, "size 1048576\n")
	sum := n.exec(class, "md5sum /data/kept")
	n.ask(class, "2Mi")
	n.kubectl("wait", "pvc/"+class, "--for=jsonpath={.status.capacity.storage}=2Mi", patiently)
	total, _ = n.df(class)
	require.EqualValues(t, 2<<20, total)
	require.Equal(t, "0", n.kubectl("get", "pod", class, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))
	volume := n.kubectl("get", "pvc", class, "-o", "jsonpath={.spec.volumeName}")
	require.Contains(t, n.onNode2("volumes show "+volume), "directory, in pool small")
	return sum
}

func (n *tenant) onNode2(args string) string {
	n.t.Helper()
	return onNode(n.ctx, n.t, "node2", driver+" "+args)
}

// becomes waits until node2 shows the state for a volume.
func (n *tenant) becomes(volume, state string) {
	n.t.Helper()
	await.Until(n.t, patience, func() string {
		shown := n.onNode2("volumes show " + volume)
		return await.Missing(strings.Contains(shown, state), "volume %s is not %s: %s", volume, state, shown)
	})
}
