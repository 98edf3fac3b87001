//go:build cluster

package cluster_test

// The CSI driver, installed beside the FlexVolume driver on the same nodes.

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

var installCSIOnce sync.Once

// newCSITenant returns a test's namespace, with the CSI driver installed as users install it.
func newCSITenant(t *testing.T, namespace string) *tenant {
	t.Helper()
	n := newTenant(t, namespace)
	n.installCSI()
	return n
}

func (n *tenant) installCSI() {
	n.t.Helper()
	t := n.t
	installCSIOnce.Do(func() {
		kubectl(n.ctx, t, "apply", "-k", shipped(t, "installer/csi"))
		kubectl(n.ctx, t, "-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-csi", patiently)
		for _, node := range []string{"node1", "node2"} {
			await.Until(t, patience, func() string {
				drivers := n.kubectl("get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name} {.spec.drivers[*].nodeID}")
				return await.Missing(drivers == "flexlvm.io "+node, "kubelet of %s has registered %q", node, drivers)
			})
		}
	})
}

// A claim of the CSI driver can do everything that one of the FlexVolume driver can.
func TestCSIVolume(t *testing.T) {
	slots.Parallel(t, 67)
	n := newCSITenant(t, "csi")
	main := pod{name: "main", claim: "data", security: "{runAsUser: 1234, runAsGroup: 1234, fsGroup: 5678}"}.manifest()
	n.run(claimOf("flexlvm-csi", "data", "200Mi"), main)
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	require.Equal(t, "flexlvm.io flexlvm/"+volume+" csi", n.kubectl("get", "pv", volume, "-o",
		"jsonpath={.spec.csi.driver} {.spec.csi.volumeHandle} {.spec.csi.volumeAttributes.namespace}"))
	total, used := n.df("main")
	require.EqualValues(t, 200<<20, total)
	require.Zero(t, used)
	require.Contains(t, n.execFails("main", "dd if=/dev/zero of=/data/fill bs=64k"), "No space left on device")
	require.EqualValues(t, 200<<20, number(t, n.exec("main", "stat -c %s /data/fill")))
	require.Equal(t, "1234:5678\n", n.exec("main", "stat -c %u:%g /data/fill"))
	n.exec("main", "rm /data/fill")
	sum := n.exec("main", "dd if=/dev/urandom of=/data/random bs=1M count=20 2>/dev/null; md5sum /data/random")

	grown := func(size string) {
		n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}="+size, patiently)
	}
	n.ask("data", "500Mi")
	grown("500Mi")
	total, _ = n.df("main")
	require.EqualValues(t, 500<<20, total)
	require.Equal(t, "500Mi", n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.capacity.storage}"))
	await.Until(t, patience, func() string {
		before := n.kubectl("get", "pv", volume, "-o", `jsonpath={.metadata.annotations.volume\.alpha\.kubernetes\.io/pre-resize-capacity}`)
		return await.Missing(before == "", "the PersistentVolume still says that %s was there before", before)
	})
	require.Equal(t, "0", n.kubectl("get", "pod", "main", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))

	// A request that no node can satisfy is refused, and the claim says so.
	n.ask("data", "900Gi")
	await.Until(t, patience, func() string {
		says := n.growth("data")
		return await.Missing(strings.HasPrefix(says, "ControllerResizeInfeasible "), "the claim says %q", says)
	})
	n.ask("data", "600Mi")
	grown("600Mi")

	// Again with another driver process, which starts while the pod does.
	n.kubectl("delete", "pod", "main")
	n.kubectl("-n", "flexlvm-system", "rollout", "restart", "daemonset/flexlvm-csi")
	n.run(main)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))
	total, _ = n.df("main")
	require.EqualValues(t, 600<<20, total)
	n.kubectl("-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-csi", patiently)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"), "a pod that runs does not notice")

	n.kubectl("delete", "pod", "main")
	n.kubectl("delete", "pvc", "data")
	n.kubectl("wait", "pv/"+volume, "--for=delete", patiently)
}

// byHand returns a PersistentVolume and its claim as an administrator may write them for an existing
// volume.
func byHand(namespace, name, node, source string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[2]s-%[1]s}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: %[1]s, name: %[2]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[3]s]}]}]}}
  %[4]s
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: %[2]s-%[1]s
  resources: {requests: {storage: 64Mi}}
`, namespace, name, node, source)
}

// Each driver mounts volumes that were created through the other.
func TestCSIBothDoors(t *testing.T) {
	slots.Parallel(t, 0)
	n := newCSITenant(t, "doors")
	n.run(claimOf("flexlvm-csi", "by-csi", "64Mi"), claim("by-flex", "64Mi"),
		pod{name: "csi", claim: "by-csi", node: "node1"}.manifest(), pod{name: "flex", claim: "by-flex", node: "node1"}.manifest())
	n.exec("csi", "echo from csi >/data/file")
	n.exec("flex", "echo from flex >/data/file")
	uid := n.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
	made := func(claim string) string { return n.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}") }
	options := func(claim string) string {
		return fmt.Sprintf(`volumeGroup: flexlvm, size: "67108864", kind: claim, clusterUID: %s, volume: %s`, uid, made(claim))
	}
	n.run(
		byHand("doors", "csi-by-flex", "node1", "flexVolume: {driver: flexlvm.io/flexlvm, fsType: xfs, options: {"+options("by-csi")+"}}"),
		byHand("doors", "flex-by-csi", "node1", "csi: {driver: flexlvm.io, fsType: xfs, volumeHandle: flexlvm/"+made("by-flex")+
			", volumeAttributes: {namespace: doors, "+options("by-flex")+"}}"),
		pod{name: "csi-by-flex", claim: "csi-by-flex"}.manifest(), pod{name: "flex-by-csi", claim: "flex-by-csi"}.manifest())
	require.Equal(t, "from csi\n", n.exec("csi-by-flex", "cat /data/file"))
	require.Equal(t, "from flex\n", n.exec("flex-by-csi", "cat /data/file"))
	n.exec("csi-by-flex", "echo again >>/data/file")
	require.Equal(t, "from csi\nagain\n", n.exec("csi", "cat /data/file"))
	total, _ := n.df("flex-by-csi")
	require.EqualValues(t, 64<<20, total)
	n.kubectl("delete", "pods", "--all")
	n.kubectl("delete", "pv", "csi-by-flex-doors", "flex-by-csi-doors", "--wait=false")
}

// The CSI driver gives no namespace access to another's volume. Each attempt has its own volume,
// because kubelet backs off between attempts for the same handle.
func TestCSITheft(t *testing.T) {
	slots.Parallel(t, 0)
	n, thief := newCSITenant(t, "csi-victim"), newCSITenant(t, "csi-thief")
	attempts := map[string]struct{ attributes, says string }{
		"as-mine":   {"namespace: csi-thief", `belongs to namespace "csi-victim"`},
		"as-theirs": {"namespace: csi-victim", `created for namespace "csi-victim", and the pod is in "csi-thief"`},
	}
	uid := n.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
	for name := range attempts {
		n.run(claimOf("flexlvm-csi", name, "64Mi"), pod{name: name, claim: name, node: "node2"}.manifest())
		n.exec(name, "echo secret >/data/file")
	}
	source := func(name, attributes string) string {
		return fmt.Sprintf(`csi: {driver: flexlvm.io, fsType: xfs, volumeHandle: flexlvm/%s, volumeAttributes: {volumeGroup: flexlvm, size: "67108864", kind: claim, clusterUID: %s, %s}}`,
			n.kubectl("get", "pvc", name, "-o", "jsonpath={.spec.volumeName}"), uid, attributes)
	}
	for name, tt := range attempts {
		require.NoError(t, thief.apply(byHand("csi-thief", name, "node2", source(name, tt.attributes))+"\n---\n"+pod{name: name, claim: name}.manifest()))
	}
	// It would stand in for kubelet's value if an administrator has set podInfoOnMount: false.
	forged := byHand("csi-thief", "forged", "node2", source("as-theirs", "namespace: csi-victim, csi.storage.k8s.io/pod.namespace: csi-victim"))
	require.ErrorContains(t, thief.apply(forged), "may hold no key that begins with csi.storage.k8s.io/")
	for name, tt := range attempts {
		thief.told(name, "FailedMount", tt.says)
		require.Equal(t, "Pending", thief.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}"))
	}
	thief.kubectl("delete", "pods", "--all")
	thief.kubectl("delete", "pv", "as-mine-csi-thief", "as-theirs-csi-thief", "--wait=false")

	err := thief.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: inline}
spec:
  containers: [{name: main, image: %s}]
  volumes: [{name: stolen, csi: {driver: flexlvm.io, fsType: xfs, volumeAttributes: {volumeGroup: flexlvm, size: "1073741824"}}}]
`, cluster.BusyboxImage))
	require.ErrorContains(t, err, "uses the CSI driver flexlvm.io inline")
	require.ErrorContains(t, err, "create a PersistentVolumeClaim")

	// Only root can use the socket. (Mounting kubelet's directory into a pod is up to the
	// administrator.)
	require.NoError(t, thief.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: socket}
spec:
  nodeSelector: {kubernetes.io/hostname: node2}
  securityContext: {runAsUser: 1234}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %s
    command: [sh, -c, exec sleep 86400]
    volumeMounts: [{name: registry, mountPath: /registry}]
  volumes: [{name: registry, hostPath: {path: /var/lib/kubelet/plugins_registry}}]
`, cluster.BusyboxImage)))
	thief.ready("socket")
	require.Empty(t, thief.exec("socket", "if [ -r /registry/flexlvm.io.sock ] || [ -w /registry/flexlvm.io.sock ]; then echo open; fi"))
	socket := ""
	await.Until(t, patience, func() string { // it is gone while another test restarts the driver
		var err error
		socket, err = shared.Node(n.ctx, "node2", "stat", "-c", "%F %U %a", "/var/lib/kubelet/plugins_registry/flexlvm.io.sock")
		return await.Missing(err == nil, "%v", err)
	})
	require.Equal(t, "socket root 600\n", socket)
	for name := range attempts {
		require.Equal(t, "secret\n", n.exec(name, "cat /data/file"))
	}
}

// A ReadWriteOncePod claim is used by one pod at a time, and mount options reach the container.
func TestCSIOncePod(t *testing.T) {
	slots.Parallel(t, 0)
	n := newCSITenant(t, "csi-once")
	n.applyExample("storageclass-csi.yaml")
	alone := strings.Replace(claimOf("flexlvm-csi-noatime", "data", "64Mi"), "ReadWriteOnce", "ReadWriteOncePod", 1)
	n.run(alone, pod{name: "one", claim: "data"}.manifest())
	require.Contains(t, n.exec("one", "grep ' /data ' /proc/mounts"), "noatime")
	require.NoError(t, n.apply(pod{name: "two", claim: "data"}.manifest()))
	await.Until(t, patience, func() string {
		message := n.kubectl("get", "pod", "two", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		return await.Missing(strings.Contains(message, "ReadWriteOncePod"), "the scheduler says %q", message)
	})
	n.kubectl("delete", "pod", "one")
	n.ready("two")
}
