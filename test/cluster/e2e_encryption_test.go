//go:build cluster

package cluster_test

// Encrypted volumes, whose key kubelet reads from a Secret at each mount and growth.

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// The example of docs/encryption.md, unchanged: a pod without its Secret, with a wrong one, and with
// the right one, then growth, IO limits and the end.
func TestEncryptedVolume(t *testing.T) {
	slots.Parallel(t, 90)
	n := newCSITenant(t, "encrypted")
	n.applyExample("storageclass-encrypted.yaml")
	const right, wrong = "the right key of 32 bytes or more, in a Secret", "another key of 32 bytes or more, of somebody"
	setKey := func(key string) {
		kubectl(n.ctx, t, "-n", "flexlvm-keys", "delete", "secret", "disk-key", "--ignore-not-found")
		kubectl(n.ctx, t, "-n", "flexlvm-keys", "create", "secret", "generic", "disk-key", "--from-literal=key="+key)
	}
	main := pod{name: "main", claim: "data", node: "node1"}.manifest()
	// mounts waits for kubelet's next attempt. Its delay doubles with each failure, up to two minutes.
	mounts := func() {
		t.Helper()
		n.kubectl("wait", "--for=condition=Ready", "pod/main", "--timeout=600s")
	}
	require.NoError(t, n.apply(claimOf("flexlvm-encrypted", "data", "200Mi")+"\n---\n"+main))
	n.told("main", "FailedMount", `secrets "disk-key" not found`)
	setKey(right)
	mounts()
	total, used := n.df("main")
	require.EqualValues(t, 200<<20, total)
	require.Zero(t, used)
	sum := n.exec("main", "for i in $(seq 2000); do echo a-pattern-in-an-encrypted-volume; done > /data/f; sync -f /data; md5sum /data/f")
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	require.Equal(t, "flexlvm-keys/disk-key flexlvm-keys/disk-key", n.kubectl("get", "pv", volume, "-o",
		"jsonpath={.spec.csi.nodePublishSecretRef.namespace}/{.spec.csi.nodePublishSecretRef.name} {.spec.csi.nodeExpandSecretRef.namespace}/{.spec.csi.nodeExpandSecretRef.name}"))
	device := "/dev/mapper/flexlvm-" + strings.ReplaceAll(volume, "-", "--")
	require.Equal(t, "0\n", onNode(n.ctx, t, "node1", "echo 3 > /proc/sys/vm/drop_caches; grep -c -a -F a-pattern-in-an-encrypted-volume "+device+" || true"))
	require.Contains(t, onNode(n.ctx, t, "node1", driver+" volumes show "+volume), "Encrypted:      yes")

	n.kubectl("patch", "pv", volume, "--type=merge", "-p", `{"metadata":{"annotations":{"flexlvm.io/io-limits":"rbps=max wbps=10485760 riops=max wiops=max"}}}`)
	n.limitsAre("main", "data", "rbps=max wbps=10485760 riops=max wiops=max")

	n.ask("data", "500Mi")
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=500Mi", patiently)
	total, _ = n.df("main")
	require.EqualValues(t, 500<<20, total)
	require.Equal(t, "0", n.kubectl("get", "pod", "main", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))

	n.kubectl("delete", "pod", "main")
	setKey(wrong)
	require.NoError(t, n.apply(main))
	n.told("main", "FailedMount", "the key of volume flexlvm/"+volume+" is wrong, and nothing was changed: the Secret that its PersistentVolume names must hold the key")
	require.NotContains(t, n.kubectl("get", "events", "-o", "yaml"), wrong)
	setKey(right)
	mounts()
	require.Equal(t, sum, n.exec("main", "md5sum /data/f"))

	n.encryptedBlock()

	require.NotEmpty(t, n.opened(), "the pod's volume is open")
	n.kubectl("delete", "pod", "main")
	await.Until(t, patience, func() string {
		open := n.opened()
		return await.Missing(open == "", "still open: %s", open)
	})
	n.keptNowhere(volume, right, wrong)
}

// keptNowhere checks that no log, event or temporary file, and no file of flexlvm's on node1, contains one of the
// keys. The volume's name is found the same way, so the search works.
func (n *tenant) keptNowhere(volume string, keys ...string) {
	n.t.Helper()
	files := func(text string) string {
		return onNode(n.ctx, n.t, "node1", "grep -r -l -F -e '"+text+"' /var/log /var/lib/flexlvm /etc/lvm /tmp /var/tmp 2>/dev/null || true")
	}
	require.NotEmpty(n.t, files(volume))
	for _, key := range keys {
		require.Empty(n.t, files(key))
		require.NotContains(n.t, n.kubectl("get", "events", "-o", "yaml"), key)
	}
	await.Until(n.t, patience, func() string { // another test may restart the driver
		said, err := shared.Kubectl(n.ctx, "-n", "flexlvm-system", "logs", "-l", "app.kubernetes.io/name=flexlvm-csi", "--tail=-1")
		for _, key := range keys {
			require.NotContains(n.t, said, key)
		}
		return await.Missing(err == nil && said != "", "there are no logs: %v", err)
	})
}

// opened returns the names of the open crypt devices on node1 of the tenant's claims, without those of
// other tests.
func (n *tenant) opened() string {
	n.t.Helper()
	volumes := n.kubectl("get", "pvc", "-o", "jsonpath={.items[*].spec.volumeName}")
	return onNode(n.ctx, n.t, "node1", "for v in "+volumes+`; do
		id=$(lvs --noheadings -o lv_uuid -S lv_name=$v | tr -d ' -')
		if [ "$id" ]; then dmsetup ls --target crypt | grep "$id" || true; fi
	done`)
}

// encryptedBlock checks that a pod gets an encrypted device, as in the example, that it grows online,
// and that the next pod finds the data.
func (n *tenant) encryptedBlock() {
	n.t.Helper()
	example, err := os.ReadFile(shipped(n.t, "examples/block-encrypted.yaml"))
	require.NoError(n.t, err)
	n.run(strings.NewReplacer("busybox:1.36", cluster.BusyboxImage, "1Gi", "20000Ki").Replace(string(example)))
	n.requireDevice("block-encrypted-pod", 20000<<10, 0)
	sum := n.fillDevice("block-encrypted-pod")
	n.ask("block-encrypted", "32Mi")
	n.kubectl("wait", "pvc/block-encrypted", "--for=jsonpath={.status.capacity.storage}=32Mi", patiently)
	n.requireDevice("block-encrypted-pod", 32<<20, 8<<20)
	n.kubectl("delete", "pod", "block-encrypted-pod")
	n.run(devicePod("block-again", "block-encrypted", ""))
	require.Equal(n.t, sum, n.sumDevice("block-again"))
	n.kubectl("delete", "pod", "block-again")
}
