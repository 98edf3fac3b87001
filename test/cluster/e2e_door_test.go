//go:build cluster

package cluster_test

// Existing volumes move from one driver to the other, and back.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/flexlvm/flexlvm/internal/migration"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// moverRights are all rights that `kubectl flexlvm door` needs.
const moverRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: door-%[1]s}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list]}
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: door-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: door-%[1]s}
subjects: [{kind: ServiceAccount, name: mover, namespace: %[1]s}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: mover}
`

// A plugin is the kubectl-flexlvm program, run with moverRights.
type plugin struct {
	*tenant
	program, kubeconfig string
}

var buildPlugin = sync.OnceValues(func() (string, error) {
	program := filepath.Join(shared.Dir(), "kubectl-flexlvm") // deleted with the cluster
	return program, built.Program(context.Background(), program, "./cmd/kubectl-flexlvm")
})

func newPlugin(n *tenant) plugin {
	n.t.Helper()
	program, err := buildPlugin()
	require.NoError(n.t, err)
	require.NoError(n.t, n.apply(fmt.Sprintf(moverRights, n.namespace)))
	p := plugin{n, program, filepath.Join(n.t.TempDir(), "kubeconfig")}
	require.NoError(n.t, shared.AccountKubeconfig(n.ctx, n.namespace, "mover", p.kubeconfig))
	n.t.Cleanup(func() {
		_, _ = shared.Kubectl(context.WithoutCancel(n.ctx), "delete", "clusterrole,clusterrolebinding", "door-"+n.namespace)
	})
	return p
}

// noDriver is part of the message while another test restarts the driver.
const noDriver = "is not registered with the kubelet"

// door runs `kubectl flexlvm door`.
func (p plugin) door(args ...string) (out string, err error) {
	p.t.Helper()
	await.Until(p.t, patience, func() string {
		cmd := shared.Command(p.ctx, append([]string{p.program, "door", "--kubeconfig", p.kubeconfig, "-n", p.namespace}, args...)...)
		began := time.Now()
		var said []byte
		said, err = cmd.CombinedOutput()
		out = string(said)
		p.t.Logf("%5.1fs kubectl flexlvm door %s: %s", time.Since(began).Seconds(), strings.Join(args, " "), out)
		return await.Missing(!strings.Contains(out, noDriver), "%s", out)
	})
	return out, err
}

// bound returns the properties of a claim and its volume that must not change, and the volume's driver.
func (n *tenant) bound(claim string) (identity, door string) {
	n.t.Helper()
	identity = n.kubectl("get", "pvc", claim, "-o", "jsonpath={.metadata.uid} {.spec.volumeName} {.status.phase}")
	volume := n.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	identity += n.kubectl("get", "pv", volume, "-o", "jsonpath= {.status.phase} {.spec.claimRef.uid} {.spec.persistentVolumeReclaimPolicy} {.metadata.labels} {.spec.storageClassName}")
	return identity, n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.driver}{.spec.flexVolume.driver}")
}

func TestDoorOfAVolumeThatIsThere(t *testing.T) {
	slots.Parallel(t, 41)
	n := newCSITenant(t, "moved")
	p := newPlugin(n)
	main := pod{name: "main", claim: "data"}.manifest()
	n.run(claim("data", "320Mi"), main)
	sum := n.exec("main", "dd if=/dev/urandom of=/data/random bs=1M count=20 2>/dev/null; sync -f /data; md5sum /data/random")
	before, door := n.bound("data")
	require.Equal(t, "flexlvm.io/flexlvm", door)

	out, err := p.door("csi", "data")
	require.Error(t, err)
	require.Contains(t, out, "in use: pod main uses claim moved/data")
	now, door := n.bound("data")
	require.Equal(t, before, now)
	require.Equal(t, "flexlvm.io/flexlvm", door)

	n.kubectl("delete", "pod", "main")
	out, err = p.door("csi", "data", "--dry-run")
	require.NoError(t, err, out)
	require.Contains(t, out, "moved/data: would move to driver csi")
	now, door = n.bound("data")
	require.Equal(t, before, now)
	require.Equal(t, "flexlvm.io/flexlvm", door)
	out, err = p.door("csi", "data")
	require.NoError(t, err, out)
	now, door = n.bound("data")
	require.Equal(t, before, now)
	require.Equal(t, "flexlvm.io", door)

	n.run(main)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))
	n.ask("data", "400Mi")
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=400Mi", patiently)
	total, _ := n.df("main")
	require.EqualValues(t, 400<<20, total)

	n.kubectl("delete", "pod", "main")
	out, err = p.door("flex", "--all-of-class", "flexlvm")
	require.NoError(t, err, out)
	now, door = n.bound("data")
	require.Equal(t, before, now)
	require.Equal(t, "flexlvm.io/flexlvm", door)
	require.Equal(t, "400Mi", n.kubectl("get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}"))
	n.run(main)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))
	total, _ = n.df("main")
	require.EqualValues(t, 400<<20, total)

	n.kubectl("delete", "pod", "main")
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	n.kubectl("delete", "pvc", "data")
	n.kubectl("wait", "pv/"+volume, "--for=delete", patiently)
}

var errKilled = errors.New("killed")

// killedAfter returns a client that fails after some writes, as if its user were killed.
func killedAfter(c client.WithWatch, writes int) client.Client {
	write := func(do func() error) error {
		if writes--; writes < 0 {
			return errKilled
		}
		return do()
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			return write(func() error { return c.Patch(ctx, o, p, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return write(func() error { return c.Delete(ctx, o, options...) })
		},
	})
}

// movesClass uses a group in which data and victim leave too little space for another volume.
const movesClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: moves}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: ` + movesGroup + `}
`

// A move is killed after each of its writes, in one direction or the other, and the next call continues it. While the
// PersistentVolume does not exist, the node daemon has to free space: it evicts a released volume, and neither releases
// the moved volume nor reports it as an orphan.
func TestDoorKilledAfterEachWrite(t *testing.T) {
	slots.Parallel(t, 85)
	const node = "node1"
	n := newCSITenant(t, "moved-killed")
	c := apiClient(t)
	require.NoError(t, n.apply(movesClass))
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(n.ctx), "delete", "storageclass", "moves")
		require.NoError(t, err, out)
	})
	n.run(claimOf("moves", "victim", "64Mi"), pod{name: "victim", claim: "victim", node: node}.manifest())
	victim := n.kubectl("get", "pvc", "victim", "-o", "jsonpath={.spec.volumeName}")
	n.kubectl("delete", "pod/victim", "pvc/victim")
	main := pod{name: "main", claim: "data", node: node}.manifest()
	n.run(claimOf("moves", "data", "320Mi"), main)
	sum := n.exec("main", "dd if=/dev/urandom of=/data/random bs=1M count=20 2>/dev/null; sync -f /data; md5sum /data/random")
	n.kubectl("delete", "pod", "main")
	identity, _ := n.bound("data")
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	key := types.NamespacedName{Namespace: n.namespace, Name: "data"}
	lost := false
	to := pv.CSI
	move := func(writes int) (err error) {
		await.Until(t, patience, func() string {
			err = (&migration.Mover{Client: killedAfter(c, writes), Timeout: patience}).Move(n.ctx, key, to)
			return await.Missing(err == nil || !strings.Contains(err.Error(), noDriver), "%v", err)
		})
		return err
	}
	other := map[pv.Door]pv.Door{pv.CSI: pv.Flex, pv.Flex: pv.CSI}
	require.NoError(t, move(math.MaxInt)) // so that the PersistentVolume is away, after the fourth write, during a move to CSI
	to = other[to]
	for writes := 1; ; writes++ {
		err := move(writes)
		if err == nil {
			require.GreaterOrEqual(t, writes, 8)
			break
		}
		require.ErrorIs(t, err, errKilled)
		if n.kubectl("get", "pv", volume, "--ignore-not-found") == "" && !lost {
			lost = true
			require.Equal(t, pv.CSI, to)
			n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.phase}=Lost", patiently)
			require.Contains(t, onNode(n.ctx, t, node, "lvs --noheadings -o lv_name "+movesGroup), victim, "nobody has needed its room yet")
			n.run(claimOf("moves", "more", "64Mi"), pod{name: "more", claim: "more", node: node}.manifest())
			require.NotContains(t, onNode(n.ctx, t, node, "lvs --noheadings -o lv_name "+movesGroup), victim)
			require.Empty(t, n.kubectl("get", "pv", volume, "--ignore-not-found"))
			require.NotContains(t, n.kubectl("get", "nodestorage", node, "-o", "jsonpath={.status.orphans[*].name}"), volume)
		}
		require.Contains(t, onNode(n.ctx, t, node, "lvs --noheadings -o lv_tags "+movesGroup+"/"+volume), "flexlvm.state=ready", "after %d writes", writes)
		require.NoError(t, move(math.MaxInt))
		now, door := n.bound("data")
		require.Equal(t, identity, now, "after %d writes", writes)
		require.Equal(t, map[pv.Door]string{pv.CSI: "flexlvm.io", pv.Flex: "flexlvm.io/flexlvm"}[to], door)
		to = other[to]
	}
	require.True(t, lost, "the PersistentVolume was never away")
	n.run(main)
	require.Equal(t, sum, n.exec("main", "md5sum /data/random"))
	events := n.kubectl("get", "events", "-A", "-o", "jsonpath={range .items[*]}{.reason} {.involvedObject.name} {.message}{'\\n'}{end}")
	for _, reason := range []string{"VolumeReleased", "VolumeNeedsAttention"} {
		require.NotContains(t, events, reason+" "+volume)
	}
	require.NotContains(t, events, movesGroup+"/"+volume+" was evicted", "of which the node is told")
}

// A StatefulSet's volumes move pod by pod, as docs/doors.md says.
func TestDoorOfAStatefulSet(t *testing.T) {
	n := newCSITenant(t, "moved-set")
	p := newPlugin(n)
	require.NoError(t, n.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  serviceName: db
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: %s
        command: [sh, -c, %q]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: flexlvm
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
`, cluster.BusyboxImage, "hostname >>/data/starts; "+cluster.Sleep)))
	n.kubectl("rollout", "status", "statefulset/db", patiently)
	for _, name := range []string{"db-1", "db-0"} {
		node := n.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")
		before, _ := n.bound("data-" + name)
		t.Cleanup(func() { _, _ = shared.Kubectl(context.WithoutCancel(n.ctx), "uncordon", node) }) // the test may fail before its own uncordon
		kubectl(n.ctx, t, "cordon", node)
		n.written(name, "/data/starts", 1)
		n.kubectl("delete", "pod", name)
		n.kubectl("wait", "pod/"+name, "--for=create", patiently)
		n.kubectl("wait", "pod/"+name, "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable", patiently)
		out, err := p.door("csi", "data-"+name)
		kubectl(n.ctx, t, "uncordon", node)
		require.NoError(t, err, out)
		n.ready(name)
		after, door := n.bound("data-" + name)
		require.Equal(t, before, after)
		require.Equal(t, "flexlvm.io", door)
		require.Equal(t, name+"\n"+name+"\n", n.written(name, "/data/starts", 2))
	}
	n.deleteStatefulSet("db") // a node is not drained while it has pods of a namespace that is being deleted
}
