//go:build cluster

package cluster_test

// These tests run in parallel, as users do, with those of datasets. Tests that take kubelets and nodes
// down ran before.

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVolumeHasExactlyTheSizeOfItsClaim(t *testing.T) {
	slots.Group(t)
	sizes := map[string]int64{"64Mi": 64 << 20, "1Gi": 1 << 30}
	if inFull() { // the volume is filled completely
		sizes["300Mi"], sizes["2560Mi"] = 300<<20, 2560<<20
	}
	for size, bytes := range sizes {
		t.Run(size, func(t *testing.T) {
			slots.Parallel(t, 0)
			n := newTenant(t, "exact-"+strings.ToLower(size))
			n.run(claim("data", size), pod{name: "main", claim: "data"}.manifest())
			require.Equal(t, "Bound "+size, n.kubectl("get", "pvc", "data", "-o", "jsonpath={.status.phase} {.status.capacity.storage}"))
			total, used := n.df("main")
			require.Equal(t, bytes, total)
			require.Zero(t, used)

			require.Contains(t, n.execFails("main", "dd if=/dev/zero of=/data/fill bs=64k"), "No space left on device")
			require.EqualValues(t, bytes, number(t, n.exec("main", "stat -c %s /data/fill")))
			_, used = n.df("main")
			require.Equal(t, bytes, used)
			require.Contains(t, n.execFails("main", "echo x >>/data/fill"), "No space left on device")
			n.exec("main", "rm /data/fill && echo x >/data/again")
		})
	}
}

func TestVolumeOutlivesItsPodAndGrowsInUse(t *testing.T) {
	slots.Parallel(t, 40)
	n := newTenant(t, "life")
	main := pod{name: "main", claim: "data"}.manifest()
	n.run(claim("data", "200Mi"), main)
	sum := n.exec("main", "dd if=/dev/urandom of=/data/random bs=1M count=20 2>/dev/null; md5sum /data/random")
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")

	n.kubectl("delete", "pod", "main")
	n.run(main)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))

	grow := func(size string) {
		n.ask("data", size)
		n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}="+size, patiently)
	}
	grow("500Mi")
	total, _ := n.df("main")
	require.EqualValues(t, 500<<20, total)
	require.Equal(t, "500Mi", n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.capacity.storage}"))
	require.Equal(t, "0", n.kubectl("get", "pod", "main", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))
	n.execFails("main", "dd if=/dev/zero of=/data/fill bs=64k")
	_, used := n.df("main")
	require.EqualValues(t, 500<<20, used)
	n.exec("main", "rm /data/fill")

	// An unused volume grows at its next mount.
	n.kubectl("delete", "pod", "main")
	n.ask("data", "700Mi")
	n.run(main)
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=700Mi", patiently)
	total, _ = n.df("main")
	require.EqualValues(t, 700<<20, total)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))
}

func TestUserWithoutRootWritesThroughFSGroup(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "fsgroup")
	n.run(claim("data", "64Mi"),
		pod{name: "main", claim: "data", security: "{runAsUser: 1234, runAsGroup: 1234, fsGroup: 5678, runAsNonRoot: true}"}.manifest())
	n.exec("main", "echo mine >/data/file")
	require.Equal(t, "1234:5678 mine\n", n.exec("main", `echo "$(stat -c %u:%g /data/file) $(cat /data/file)"`))
}

func TestPodsOfOneNodeShareAClaim(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "share")
	n.run(claim("data", "64Mi"), pod{name: "one", claim: "data", node: "node1"}.manifest())
	// The volume ties the other pods to its node, whether they ask for it or not.
	n.run(pod{name: "two", claim: "data"}.manifest(), pod{name: "reader", claim: "data", readOnly: true}.manifest())
	require.Equal(t, "node1 node1 node1", n.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"))

	n.exec("one", "echo from one >/data/file")
	n.exec("two", "echo from two >>/data/file")
	require.Equal(t, "from one\nfrom two\n", n.exec("reader", "cat /data/file"))
	require.Contains(t, n.execFails("reader", "echo from reader >>/data/file"), "Read-only file system")
	n.exec("one", "echo from one >>/data/file")

	// A pod that ends does not affect the others.
	n.kubectl("delete", "pod", "one")
	n.exec("two", "echo again from two >>/data/file")
	require.Equal(t, "4\n", n.exec("reader", "wc -l </data/file"))
}

func TestReadOnlyPodIsFirst(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "reader-first")
	n.run(claim("data", "64Mi"), pod{name: "reader", claim: "data", readOnly: true}.manifest())
	require.Contains(t, n.execFails("reader", "touch /data/file"), "Read-only file system")
	n.run(pod{name: "writer", claim: "data"}.manifest())
	n.exec("writer", "echo written >/data/file")
	require.Equal(t, "written\n", n.exec("reader", "cat /data/file"))
}

// A refused claim gets an event that says why. The provisioner's own tests cover every case.
func TestRefusedClaimSaysWhy(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "refused")
	require.NoError(t, n.apply(claim("block", "64Mi", "volumeMode: Block")+"\n---\n"+
		strings.Replace(pod{name: "main", claim: "block"}.manifest(), "volumeMounts:\n    - {name: data, mountPath: /data}",
			"volumeDevices:\n    - {name: data, devicePath: /dev/data}", 1)))
	n.told("block", "ProvisioningFailed", "volumeMode Block is not supported")
}

func TestInlineVolumesAreRefused(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "inline")
	inPod := `
  containers: [{name: main, image: busybox:1.36}]
  volumes:
  - name: stolen
    flexVolume: {driver: flexlvm.io/flexlvm, options: {volumeGroup: flexlvm, size: "1073741824"}}
`
	err := n.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: inline}\nspec:" + inPod)
	require.ErrorContains(t, err, "create a PersistentVolumeClaim")
	err = n.apply("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: inline}\n" +
		"spec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:" +
		strings.ReplaceAll(inPod, "\n", "\n    "))
	require.ErrorContains(t, err, "create a PersistentVolumeClaim")
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	var n int64
	for _, digit := range strings.TrimSpace(text) {
		require.True(t, digit >= '0' && digit <= '9', text)
		n = 10*n + int64(digit-'0')
	}
	return n
}
