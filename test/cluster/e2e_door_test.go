//go:build cluster

package cluster_test

// Volumes that there are move from one driver to the other, and back.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// moverRights is all that `kubectl flexlvm door` needs.
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

// A plugin is kubectl-flexlvm, run with moverRights.
type plugin struct {
	*tenant
	program, kubeconfig string
}

var buildPlugin = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "plugin")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "kubectl-flexlvm")
	return program, built.Go(context.Background(), "", program, "github.com/flexlvm/flexlvm/cmd/kubectl-flexlvm")
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

// noDriver is what is said while another test restarts the driver.
const noDriver = "does not have the CSI driver"

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

// bound is what must not change of a claim, and the door of its volume.
func (n *tenant) bound(claim string) (identity, door string) {
	n.t.Helper()
	identity = n.kubectl("get", "pvc", claim, "-o", "jsonpath={.metadata.uid} {.spec.volumeName} {.status.phase}")
	volume := n.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	identity += n.kubectl("get", "pv", volume, "-o", "jsonpath= {.status.phase} {.spec.claimRef.uid} {.spec.persistentVolumeReclaimPolicy} {.metadata.labels} {.spec.storageClassName}")
	return identity, n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.driver}{.spec.flexVolume.driver}")
}

// A StatefulSet moves pod by pod, as docs/doors.md says.
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
        command: [sh, -c, "hostname >>/data/starts; exec sleep 86400"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      storageClassName: flexlvm
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
`, cluster.BusyboxImage)))
	n.kubectl("rollout", "status", "statefulset/db", "--timeout=240s")
	for _, name := range []string{"db-1", "db-0"} {
		node := n.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")
		before, _ := n.bound("data-" + name)
		kubectl(n.ctx, t, "cordon", node)
		n.kubectl("delete", "pod", name)
		n.kubectl("wait", "pod/"+name, "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable", "--timeout=60s")
		out, err := p.door("csi", "data-"+name)
		kubectl(n.ctx, t, "uncordon", node)
		require.NoError(t, err, out)
		n.kubectl("rollout", "status", "statefulset/db", "--timeout=240s")
		after, door := n.bound("data-" + name)
		require.Equal(t, before, after)
		require.Equal(t, "flexlvm.io", door)
		require.Equal(t, name+"\n"+name+"\n", n.exec(name, "cat /data/starts"))
	}
}
