//go:build cluster

package cluster_test

// VolumeSnapshots through CSI's snapshotter and the cluster's snapshot controller.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// snapshotController is the cluster's snapshot controller, which serves all tests.
var snapshotController struct {
	once sync.Once
	log  bytes.Buffer
	stop func() // set once it runs
}

func startSnapshotController(ctx context.Context, t *testing.T) {
	t.Helper()
	c := &snapshotController
	c.once.Do(func() {
		program, err := cluster.BuildSnapshotController(ctx, os.Stderr)
		require.NoError(t, err)
		cmd := shared.Command(context.WithoutCancel(ctx), program, "--kubeconfig="+shared.AdminKubeconfig())
		cmd.Stdout, cmd.Stderr = &c.log, &c.log
		require.NoError(t, cmd.Start())
		c.stop = func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	})
}

// snapshotTenant returns a tenant that can take snapshots, with the shipped StorageClass for them.
func snapshotTenant(t *testing.T, namespace string) *tenant {
	t.Helper()
	n := sidecarTenant(t, namespace)
	startSnapshotController(n.ctx, t)
	n.loadEtcd()
	n.example("class.yaml")
	return n
}

// example applies a file of examples/snapshots, with its thin pool in the group of these tests' nodes.
func (n *tenant) example(name string) {
	n.t.Helper()
	content, err := os.ReadFile(shipped(n.t, "examples/snapshots/"+name))
	require.NoError(n.t, err)
	examplesApplied.Lock()
	defer examplesApplied.Unlock()
	require.NoError(n.t, n.apply(strings.Replace(string(content), "  layout: thin\n", "  layout: thin\n  volumeGroup: "+thinGroup+"\n", 1)))
}

// A database is snapshotted while it writes, deleted, and restored from the snapshot.
func TestSnapshots(t *testing.T) {
	slots.Parallel(t, 62)
	n := snapshotTenant(t, "snapshots")
	n.run(database(pod{name: "main", claim: "database", node: "node1"}, writing))
	source := n.kubectl("get", "pvc", "database", "-o", "jsonpath={.spec.volumeName}")
	n.untilWritten("main")

	before, asked := n.acknowledged("main"), time.Now()
	n.example("snapshot.yaml")
	n.kubectl("wait", "volumesnapshot/database-monday", "--for=jsonpath={.status.readyToUse}=true", patiently)
	t.Logf("the snapshot was ready %.1f s after it was asked for", time.Since(asked).Seconds())
	after := n.acknowledged("main")
	require.Equal(t, "64Mi", n.kubectl("get", "volumesnapshot", "database-monday", "-o", "jsonpath={.status.restoreSize}"))
	handle := n.snapshotHandle("database-monday")
	name := strings.TrimPrefix(handle, thinGroup+"/")
	at := n.kubectl("get", "pv", name, "-o", `jsonpath={.metadata.annotations.flexlvm\.io/snapshot-taken}`)
	require.Equal(t, at, n.kubectl("get", "volumesnapshot", "database-monday", "-o", "jsonpath={.status.creationTime}"), "the moment that it is of")
	require.Contains(t, onNode(n.ctx, t, "node1", driver+" volumes list"), name)

	// Its source is deleted: claim, PersistentVolume and all.
	n.kubectl("delete", "pod", "main")
	n.kubectl("delete", "pvc", "database")
	n.kubectl("wait", "pv/"+source, "--for=delete", patiently)
	n.stolen(handle)

	asked = time.Now()
	n.example("restore.yaml")
	n.run(database(pod{name: "restored", claim: "database-restored"}, ""))
	t.Logf("a pod ran on the restored volume %.1f s after it was asked for", time.Since(asked).Seconds())
	held := n.requireKeys("restored", before, after)
	total, _ := n.df("restored")
	require.EqualValues(t, 128<<20, total)
	require.Equal(t, "node1", n.kubectl("get", "pod", "restored", "-o", "jsonpath={.spec.nodeName}"))

	// The restored volume and its own snapshot outlive the snapshot that it was restored from.
	require.NoError(t, n.apply(snapshotOf("database-restored")))
	n.kubectl("wait", "volumesnapshot/of-database-restored", "--for=jsonpath={.status.readyToUse}=true", patiently)
	n.kubectl("delete", "volumesnapshot", "database-monday", patiently)
	n.kubectl("wait", "pv/"+name, "--for=delete", patiently)
	await.Until(t, patience, func() string {
		left := onNode(n.ctx, t, "node1", "lvs --noheadings -o lv_name "+thinGroup)
		return await.Missing(!strings.Contains(left, name), "the snapshot's volume stays: %s", left)
	})
	require.Equal(t, held, n.keys("restored"))
	n.sidecarsStay()
}

func (n *tenant) snapshotHandle(snapshot string) string {
	n.t.Helper()
	content := n.kubectl("get", "volumesnapshot", snapshot, "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	return n.kubectl("get", "volumesnapshotcontent", content, "-o", "jsonpath={.status.snapshotHandle}")
}

func snapshotOf(claim string) string {
	return fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: of-%[1]s}
spec:
  volumeSnapshotClassName: flexlvm
  source: {persistentVolumeClaimName: %[1]s}
`, claim)
}

// The same with a thick volume, which cannot grow meanwhile and stays on the disk for its snapshot.
func TestSnapshotOfAThickVolume(t *testing.T) {
	slots.Parallel(t, 100)
	n := snapshotTenant(t, "thick-snapshots")
	n.example("thick.yaml")
	n.run(database(pod{name: "books", claim: "ledger", node: "node1"}, writing))
	source := n.kubectl("get", "pvc", "ledger", "-o", "jsonpath={.spec.volumeName}")
	n.untilWritten("books")
	before := n.acknowledged("books")
	n.example("thick-snapshot.yaml")
	n.kubectl("wait", "volumesnapshot/ledger-monday", "--for=jsonpath={.status.readyToUse}=true", patiently)
	after := n.acknowledged("books")
	require.Equal(t, "64Mi", n.kubectl("get", "volumesnapshot", "ledger-monday", "-o", "jsonpath={.status.restoreSize}"))
	name := n.kubectl("get", "pv", "-l", "flexlvm.io/snapshot", "-o", `jsonpath={.items[?(@.spec.csi.volumeAttributes.cloneOf=="`+source+`")].metadata.name}`)
	onDisk := func(what string) bool { return strings.Contains(n.thickVolumes(), what) }
	require.True(t, onDisk(name))
	n.kubectl("patch", "pvc", "ledger", "--patch", `{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}`)
	await.Until(t, patience, func() string {
		says := n.growth("ledger")
		return await.Missing(strings.Contains(says, "it has 1 snapshot with a store of its own"), "the claim says %q", says)
	})
	n.storeFills("books", "ledger")

	n.kubectl("delete", "pod", "books")
	n.kubectl("delete", "pvc", "ledger")
	n.kubectl("wait", "pv/"+source, "--for=delete", patiently)
	asked := time.Now()
	n.example("thick-restore.yaml")
	n.run(database(pod{name: "books-restored", claim: "ledger-restored"}, ""))
	t.Logf("a pod ran on the full copy %.1f s after it was asked for", time.Since(asked).Seconds())
	held := n.requireKeys("books-restored", before, after)
	n.untilKept(source)
	n.kubectl("delete", "volumesnapshot", "ledger-monday", patiently)
	n.kubectl("wait", "pv/"+name, "--for=delete", patiently)
	await.Until(t, patience, func() string { return await.Missing(!onDisk(name), "the snapshot's volume stays") })
	require.Equal(t, held, n.keys("books-restored"))
}

// storeFills takes a snapshot with a small store and overwrites its source, up to 82 % of the store, so that the event
// comes before the snapshot is lost however late the daemon looks.
func (n *tenant) storeFills(pod, claim string) {
	n.t.Helper()
	require.NoError(n.t, n.apply(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: flexlvm-reserve-10}
driver: flexlvm.io
deletionPolicy: Delete
parameters: {reserve: 10%}
---`+strings.Replace(snapshotOf(claim), "volumeSnapshotClassName: flexlvm", "volumeSnapshotClassName: flexlvm-reserve-10", 1)))
	n.kubectl("wait", "volumesnapshot/of-"+claim, "--for=jsonpath={.status.readyToUse}=true", patiently)
	_, name, _ := strings.Cut(n.snapshotHandle("of-"+claim), "/")
	n.exec(pod, `dd if=/dev/zero of=/data/ballast bs=1M count=18 conv=fsync 2>/dev/null
		{ for i in $(seq 72 104); do dd if=/dev/zero of=/data/ballast bs=256k count=1 seek=$i conv=notrunc,fsync; sleep 1; done; } >/dev/null 2>&1 &`)
	n.ifFailed(func(ctx context.Context) (string, error) {
		return shared.Node(ctx, "node1", "lvs", "-o", "lv_name,lv_size,snap_percent", "flexlvm")
	})
	(&tenant{ctx: n.ctx, t: n.t, namespace: "default"}).told(name, "SnapshotAlmostFull", "of the 32 MiB that are set aside") // of a PersistentVolume
	n.kubectl("delete", "volumesnapshot", "of-"+claim, patiently)
	n.kubectl("delete", "volumesnapshotclass", "flexlvm-reserve-10")
}

// thickVolumes lists the logical volumes in the shipped class's group of node1.
func (n *tenant) thickVolumes() string {
	n.t.Helper()
	return onNode(n.ctx, n.t, "node1", "lvs --noheadings -o lv_name flexlvm")
}

// untilKept waits until node1 lists a released volume as kept because it is in use. Nothing mounts it,
// so its snapshots are the reason.
func (n *tenant) untilKept(volume string) {
	n.t.Helper()
	await.Until(n.t, patience, func() string {
		var node1 flexlvmv1.NodeStorage
		n.look("node1", &node1)
		kept := slices.ContainsFunc(node1.Status.Released, func(v flexlvmv1.ReleasedVolume) bool { return v.Name == volume && v.Kept == "InUse" })
		return await.Missing(kept, "node1 does not say that %s is kept: %+v", volume, node1.Status.Released)
	})
}

// stolen checks that another namespace cannot use a snapshot, even if an administrator names it in a
// VolumeSnapshotContent, and that no claim can bind to its PersistentVolume.
func (n *tenant) stolen(handle string) {
	n.t.Helper()
	name := strings.TrimPrefix(handle, thinGroup+"/")
	thief := newTenant(n.t, "snapshot-thief")
	require.NoError(n.t, thief.apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: stolen}
spec:
  deletionPolicy: Retain
  driver: flexlvm.io
  source: {snapshotHandle: %s}
  volumeSnapshotRef: {name: stolen, namespace: snapshot-thief}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: stolen}
spec:
  source: {volumeSnapshotContentName: stolen}
`, handle)))
	thief.kubectl("wait", "volumesnapshot/stolen", "--for=jsonpath={.status.readyToUse}=true", patiently)
	require.NoError(n.t, thief.apply(claimOf("flexlvm-snapshots", "stolen", "64Mi", "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: stolen}")+
		"\n---\n"+pod{name: "stolen", claim: "stolen", node: "node1"}.manifest()))
	thief.told("stolen", "ProvisioningFailed", "its snapshot is of a volume of another namespace")
	for _, who := range []*tenant{n, thief} {
		require.NoError(n.t, who.apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bound}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: %s
  resources: {requests: {storage: 1Mi}}
`, name)))
	}
	require.ErrorContains(n.t, n.apply(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"(snapshot)"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}}`), "metadata.name")
	for _, who := range []*tenant{n, thief} {
		who.told("bound", "FailedBinding", "already bound to a different claim")
	}
	require.Equal(n.t, "Available", n.kubectl("get", "pv", name, "-o", "jsonpath={.status.phase}"))
	n.kubectl("delete", "pvc", "bound")
	thief.kubectl("delete", "pods,pvc", "--all")
	thief.kubectl("delete", "volumesnapshot", "stolen", patiently)
	thief.kubectl("delete", "volumesnapshotcontent", "stolen", patiently)
}
