//go:build cluster

package cluster_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

// Volumes do not depend on the container runtime: pods of two runtimes share one claim, and its data
// survives a change from one runtime to the other.
func TestRuncBesideCrun(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "runtimes")
	require.NoError(t, n.apply("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: runc}\nhandler: runc\n"))
	n.run(claim("data", "64Mi"), pod{name: "crun", claim: "data"}.manifest())
	n.run(pod{name: "runc", claim: "data", runtime: "runc"}.manifest(),
		pod{name: "reader", claim: "data", runtime: "runc", readOnly: true}.manifest())
	n.exec("crun", "echo from crun >/data/file; mkdir /data/dir")
	n.exec("runc", "echo from runc >>/data/file; rmdir /data/dir")
	require.Equal(t, "from crun\nfrom runc\n", n.exec("reader", "cat /data/file"))
	require.Contains(t, n.execFails("reader", "echo from reader >>/data/file"), "Read-only file system")
	total, _ := n.df("runc")
	require.EqualValues(t, 64<<20, total)

	n.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=128Mi", patiently)
	total, _ = n.df("runc")
	require.EqualValues(t, 128<<20, total, "grown in use")
	n.kubectl("delete", "pod", "crun")
	n.exec("runc", "echo again from runc >>/data/file")
}

// A database that is killed for its memory finds its durable data in the container that kubelet
// restarts, on the same mount.
func TestVolumeOutlivesAContainerOutOfMemory(t *testing.T) {
	slots.Parallel(t, 0)
	n := newTenant(t, "oom")
	const hungry = `if [ -e /data/sum ]; then exec sleep 86400; fi
dd if=/dev/urandom of=/data/random bs=1M count=20 2>/dev/null; md5sum /data/random >/data/sum; sync -f /data
exec tail /dev/zero`
	require.NoError(t, n.apply(claim("data", "64Mi")+"\n---\n"+
		pod{name: "main", claim: "data", command: hungry, limits: "{memory: 32Mi}"}.manifest()))
	// By the exit signal, because the runtime may miss the event from which it derives OOMKilled.
	await.Until(t, patience, func() string {
		var main corev1.Pod
		n.look("main", &main)
		killed := slices.ContainsFunc(main.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.LastTerminationState.Terminated != nil && c.LastTerminationState.Terminated.ExitCode == 137
		})
		return await.Missing(killed, "its containers are %+v", main.Status.ContainerStatuses)
	})
	n.ready("main")
	n.exec("main", "md5sum -c /data/sum")
	n.exec("main", "echo more >/data/more")
}
