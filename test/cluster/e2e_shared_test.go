//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// Another namespace reads a dataset that it is offered, where it is stored. After the offer is
// withdrawn, its running pod continues to read and no other can start. A namespace that was never named
// gets nothing.
func TestDatasetIsShared(t *testing.T) {
	slots.Parallel(t, 41)
	newCSITenant(t, "shared-csi") // installs the driver
	l := newLibrary(t, "lender")
	guests := *l
	guests.tenant = newTenant(t, "guests")
	thief := *l
	thief.tenant = newTenant(t, "thieves")
	l.bucket("lent", 1*mib, 100, 256<<10)
	offer := func(to string) {
		require.NoError(t, l.apply(strings.Replace(l.dataset("books", "S3", "lent", 1), "    options:", "    sharedWith: ["+to+"]\n    options:", 1)))
	}
	offer("guests")
	owner := l.until("books", loaded)
	borrow := fmt.Sprintf(`
apiVersion: flexlvm.io/v1
kind: VolumeManager
metadata: {name: borrowed}
spec:
  volumes:
  - {id: data, sourceType: Shared, accessMode: ReadOnlyMany, capacity: 1Gi, labels: {dataset: borrowed}, options: {namespace: %s, name: books, volume: data}}
`, "lender")
	require.NoError(t, guests.apply(borrow))
	require.NoError(t, thief.apply(borrow))
	vm := guests.until("borrowed", func(vm flexlvmv1.VolumeManager) string {
		return await.Missing(vm.Status.State == flexlvmv1.StateRunning, "its state is %q: %+v", vm.Status.State, vm.Status.Volumes)
	})
	guests.reader("reader", vm, "")
	require.Equal(t, l.sums, guests.read("reader"))
	require.Regexp(t, "Read-only file system|Value too large", guests.execFails("reader", "touch /data/new"))
	require.Len(t, l.onDisk(owner), 1, "there is one copy")

	// The thief gets no claim, and the driver refuses a PersistentVolume that an administrator would
	// have to create.
	refused := thief.until("borrowed", failed)
	require.Contains(t, refused.Status.Volumes[0].Message, "offers no volume \"data\" to namespace thieves")
	require.Empty(t, thief.kubectl("get", "pvc", "-o", "name"))
	name := strings.TrimSpace(guests.kubectl("get", "pvc", "borrowed-data", "-o", "jsonpath={.spec.volumeName}"))
	attributes := guests.kubectl("get", "pv", name, "-o", "jsonpath={.spec.csi.volumeAttributes}")
	require.NoError(t, thief.apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: flexlvm-stolen}
spec:
  accessModes: [ReadOnlyMany]
  capacity: {storage: 400Mi}
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: thieves, name: stolen}
  csi: {driver: flexlvm.io, volumeHandle: %q, readOnly: true, volumeAttributes: %s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: stolen}
spec: {storageClassName: "", volumeName: flexlvm-stolen, accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Mi}}}
`, guests.kubectl("get", "pv", name, "-o", "jsonpath={.spec.csi.volumeHandle}"), attributes)))
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(l.ctx), "delete", "pv", "flexlvm-stolen", "--wait=false", "--ignore-not-found")
		require.NoError(t, err, out)
	})
	require.NoError(t, thief.apply(pod{name: "thief", claim: "stolen", node: l.onDisk(owner)[0]}.manifest()))
	thief.told("thief", "FailedMount", `the volume was created for namespace "guests", and the pod is in "thieves"`)
	thief.kubectl("delete", "pod", "thief")
	thief.kubectl("delete", "pvc", "stolen")

	offer("")
	guests.until("borrowed", failed)
	guests.kubectl("wait", "--for=jsonpath={.metadata.deletionTimestamp}", "pvc/borrowed-data", patiently)
	require.Equal(t, l.sums, guests.read("reader"), "it reads on")
	require.NoError(t, guests.apply(pod{name: "late", claim: "borrowed-data"}.manifest()))
	await.Until(t, patience, func() string {
		why := guests.kubectl("get", "pod", "late", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return await.Missing(strings.Contains(why, "is being deleted"), "the pod that is late: %q", why)
	})
	guests.kubectl("delete", "pod", "late", "reader")
	guests.kubectl("delete", "vm", "borrowed", patiently)
	thief.kubectl("delete", "vm", "borrowed", patiently)
}
