//go:build cluster

package cluster_test

// Other uses of volumes through the CSI driver: datasets and generic ephemeral volumes.

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

const csiDatasetClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: csi-datasets}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: flexlvm, kind: dataset, reclaim: immediate, door: csi}
`

// A dataset is loaded, read on its nodes, and released, all through the CSI driver.
func TestCSIDataset(t *testing.T) {
	slots.Parallel(t, 99)
	newCSITenant(t, "csi-any") // installs the driver
	l := newLibrary(t, "csi-library")
	require.NoError(t, l.apply(csiDatasetClass))
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(l.ctx), "delete", "storageclass", "csi-datasets", "--ignore-not-found")
		require.NoError(t, err, out)
	})
	l.bucket("csi-books", 1*mib, 100, 256<<10)
	require.NoError(t, l.apply(l.dataset("books", "S3", "csi-books", 2, "storageClass: csi-datasets")))
	vm := l.until("books", loaded)
	require.Equal(t, []string{"node1", "node2"}, l.bearing(vm))
	for i, node := range []string{"node1", "node2"} {
		name := fmt.Sprintf("reader-%d", i)
		l.reader(name, vm, node)
		require.Equal(t, l.sums, l.read(name))
		require.Regexp(t, "Read-only file system|Value too large", l.execFails(name, "touch /data/new"))
	}
	// The PersistentVolumes of the replicas and that of their readers.
	doors := strings.Fields(l.kubectl("get", "pv", "-o", `jsonpath={range .items[?(@.spec.claimRef.namespace=="csi-library")]}{.spec.csi.driver}:{.spec.csi.volumeHandle}{"\n"}{end}`))
	require.Len(t, doors, 3)
	for _, door := range doors {
		require.Regexp(t, `^flexlvm\.io:flexlvm/ds-[0-9a-f]+(/readers)?$`, door)
	}
	require.Equal(t, 1, strings.Count(strings.Join(doors, " "), "/readers"))
	l.kubectl("delete", "pods", "--all")
	l.kubectl("delete", "vm", "books", patiently)
	require.Empty(t, l.bearing(vm))
	await.Until(t, patience, func() string {
		return await.Missing(len(l.onDisk(vm)) == 0, "logical volumes stay: %v", l.onDisk(vm))
	})

	// A job's results are uploaded.
	require.NoError(t, l.server.MakeBucket(l.ctx, "csi-output", false))
	require.NoError(t, l.apply(l.dataset("work", "S3-Dev", "csi-books", 1, "outputURL: s3://csi-output/run/", "storageClass: csi-datasets")))
	vm = l.until("work", loaded)
	l.reader("worker", vm, "")
	require.Equal(t, l.sums, l.read("worker"))
	l.exec("worker", "echo 42 >/data/answer && sync -f /data")
	l.kubectl("delete", "pod", "worker")
	l.kubectl("patch", "vm", "work", "--type=merge", "-p", `{"spec":{"state":"Completed"}}`)
	l.until("work", func(vm flexlvmv1.VolumeManager) string {
		return await.Missing(vm.Status.State == flexlvmv1.StateCompleted, "its state is %q", vm.Status.State)
	})
	answer, err := l.server.Get(l.ctx, "csi-output", "run/answer")
	require.NoError(t, err)
	require.Equal(t, "42\n", string(answer))
}

// A generic ephemeral volume is created with its pod, in the requested size, and deleted with it.
func TestCSIEphemeral(t *testing.T) {
	slots.Parallel(t, 62)
	n := newCSITenant(t, "csi-ephemeral")
	n.run(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: main}
spec:
  securityContext: {runAsUser: 1234, runAsGroup: 1234, fsGroup: 5678}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %s
    command: [sh, -c, exec sleep 86400]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOncePod]
          storageClassName: flexlvm-csi
          resources: {requests: {storage: 128Mi}}
`, cluster.BusyboxImage))
	total, used := n.df("main")
	require.EqualValues(t, 128<<20, total)
	require.Zero(t, used)
	n.exec("main", "echo mine >/data/file")
	volume := n.kubectl("get", "pvc", "main-data", "-o", "jsonpath={.spec.volumeName}")
	require.Equal(t, "flexlvm.io", n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.driver}"))
	n.kubectl("delete", "pod", "main")
	n.kubectl("wait", "pvc/main-data", "--for=delete", patiently)
	n.kubectl("wait", "pv/"+volume, "--for=delete", patiently)
}
