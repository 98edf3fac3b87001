//go:build cluster

package cluster_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// devicePod returns a pod with a claim's device at /dev/data.
func devicePod(name, claim, node string) string {
	manifest := pod{name: name, claim: claim, node: node}.manifest()
	return strings.Replace(manifest, "volumeMounts:\n    - {name: data, mountPath: /data}", "volumeDevices:\n    - {name: data, devicePath: /dev/data}", 1)
}

// fillDevice writes to the first bytes of a pod's device, and returns their checksum.
func (n *tenant) fillDevice(pod string) string {
	n.t.Helper()
	n.exec(pod, "dd if=/dev/urandom of=/dev/data bs=1M count=8 conv=notrunc,fsync 2>/dev/null")
	return n.sumDevice(pod)
}

func (n *tenant) sumDevice(pod string) string {
	n.t.Helper()
	return n.exec(pod, "head -c 8388608 /dev/data | md5sum")
}

// requireDevice checks the size of a pod's device, and that it reads as zeros behind what fillDevice
// wrote.
func (n *tenant) requireDevice(pod string, size int64, from int64) {
	n.t.Helper()
	require.EqualValues(n.t, size, number(n.t, n.exec(pod, "blockdev --getsize64 /dev/data")))
	n.exec(pod, fmt.Sprintf("[ $(dd if=/dev/data bs=1M skip=%d 2>/dev/null | tr -d '\\0' | wc -c) = 0 ]", from>>20))
}

// A pod gets a device of exactly the requested size, which reads as zeros, grows online, also after another pod
// that used it has ended, and keeps its data for the next pod. The example is applied as shipped, except for the image and the size.
func TestBlock(t *testing.T) {
	slots.Parallel(t, 58)
	n := newCSITenant(t, "block")
	example, err := os.ReadFile(shipped(t, "examples/block.yaml"))
	require.NoError(t, err)
	n.run(strings.NewReplacer("busybox:1.36", cluster.BusyboxImage, "1Gi", "40000Ki").Replace(string(example)))
	pv := n.kubectl("get", "pvc", "block", "-o", "jsonpath={.spec.volumeName}")
	require.Equal(t, "Block Block", n.kubectl("get", "pv", pv, "-o", "jsonpath={.spec.volumeMode} {.spec.csi.volumeAttributes.volumeMode}"))
	n.requireDevice("block-pod", 40000<<10, 0)
	sum := n.fillDevice("block-pod")
	node := n.kubectl("get", "pod", "block-pod", "-o", "jsonpath={.spec.nodeName}")
	require.Contains(t, onNode(n.ctx, t, node, "lvs --noheadings -o lv_device_open,lv_tags -S lv_name="+pv), "open")

	// kubelet requests the growth at the path of the last pod that got the device, which has ended.
	n.run(devicePod("last", "block", node))
	require.Equal(t, sum, n.sumDevice("last"))
	n.kubectl("delete", "pod", "last")
	n.ask("block", "64Mi")
	n.kubectl("wait", "pvc/block", "--for=jsonpath={.status.capacity.storage}=64Mi", patiently)
	n.requireDevice("block-pod", 64<<20, 8<<20)
	require.Equal(t, "0", n.kubectl("get", "pod", "block-pod", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))

	n.kubectl("delete", "pod", "block-pod")
	await.Until(t, patience, func() string {
		left := onNode(n.ctx, t, node, "lvs --noheadings -o lv_device_open -S lv_name="+pv)
		return await.Missing(strings.TrimSpace(left) == "", "the volume stays open: %s", left)
	})
	n.run(devicePod("again", "block", ""))
	require.Equal(t, sum, n.sumDevice("again"))
	n.requireDevice("again", 64<<20, 8<<20)

	// An impossible request is reported by an event.
	require.NoError(t, n.apply(claimOf("flexlvm", "flex", "64Mi", "volumeMode: Block")+"\n---\n"+devicePod("flex", "flex", "node1")))
	n.told("flex", "ProvisioningFailed", "use volumeMode Filesystem, or a class with door: csi")
}

// A snapshot of a raw block volume is restored. Restoring it as a file system is refused.
func TestSnapshotOfABlockVolume(t *testing.T) {
	slots.Parallel(t, 40)
	n := snapshotTenant(t, "block-snapshots")
	n.run(claimOf("flexlvm-snapshots", "raw", "64Mi", "volumeMode: Block"), devicePod("raw", "raw", "node1"))
	sum := n.fillDevice("raw")
	require.NoError(t, n.apply(snapshotOf("raw")))
	n.kubectl("wait", "volumesnapshot/of-raw", "--for=jsonpath={.status.readyToUse}=true", patiently)
	require.NotEqual(t, sum, n.fillDevice("raw"))
	from := "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: of-raw}"
	n.run(claimOf("flexlvm-snapshots", "raw-restored", "72Mi", "volumeMode: Block", from), devicePod("raw-restored", "raw-restored", "node1"))
	require.Equal(t, sum, n.sumDevice("raw-restored"))
	n.requireDevice("raw-restored", 72<<20, 8<<20)

	require.NoError(t, n.apply(claimOf("flexlvm-snapshots", "raw-files", "64Mi", from)+"\n---\n"+pod{name: "raw-files", claim: "raw-files", node: "node1"}.manifest()))
	n.told("raw-files", "ProvisioningFailed", "its volume has volumeMode Block, and the claim Filesystem")
}
