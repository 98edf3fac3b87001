//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ext4 volumes of either driver have the exact size, grow online, and keep their data for the next pod.
func TestExt4(t *testing.T) {
	slots.Parallel(t, 59)
	n := newCSITenant(t, "ext4")
	n.applyExample("storageclass-ext4.yaml")
	require.NoError(t, n.apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: flexlvm-ext4-csi}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {door: csi, fsType: ext4}
`))
	for class, fsType := range map[string]string{
		"flexlvm-ext4":     "jsonpath={.spec.flexVolume.fsType}",
		"flexlvm-ext4-csi": "jsonpath={.spec.csi.fsType}",
	} {
		main := pod{name: class, claim: class, node: "node1"}.manifest()
		n.run(claimOf(class, class, "200Mi"), main)
		pv := n.kubectl("get", "pvc", class, "-o", "jsonpath={.spec.volumeName}")
		require.Equal(t, "ext4", n.kubectl("get", "pv", pv, "-o", fsType))
		require.Contains(t, n.exec(class, "grep ' /data ' /proc/mounts"), " ext4 ")
		total, used := n.df(class)
		require.EqualValues(t, 200<<20, total)
		require.EqualValues(t, 4<<10, used, "its root directory")

		full := n.exec(class, "dd if=/dev/zero of=/data/fill bs=64k 2>&1 || true; sync -f /data; stat -c %s /data/fill")
		require.Contains(t, full, "Disk quota exceeded")
		var size int64
		_, err := fmt.Sscan(full[strings.LastIndex(strings.TrimSpace(full), "\n")+1:], &size)
		require.NoError(t, err, full)
		require.InDelta(t, 200<<20, size, 16<<10)
		sum := n.exec(class, "rm /data/fill; head -c 5000000 /dev/urandom > /data/kept; sync -f /data; md5sum /data/kept")

		n.ask(class, "500Mi")
		n.kubectl("wait", "pvc/"+class, "--for=jsonpath={.status.capacity.storage}=500Mi", patiently)
		total, _ = n.df(class)
		require.EqualValues(t, 500<<20, total)
		require.Equal(t, "0", n.kubectl("get", "pod", class, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))
		n.kubectl("delete", "pod", class)
		n.run(main)
		require.Equal(t, sum, n.exec(class, "md5sum /data/kept"))
		require.Regexp(t, `File system type: +ext4`, onNode(n.ctx, t, "node1", driver+" volumes show "+pv))
	}
}
