//go:build cluster

package cluster_test

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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

// driver is where the installer puts the driver. Operators run it by this path, too.
const driver = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm"

// patience is the timeout for steps that take seconds on an idle machine.
const patience = 9 * time.Minute

// patiently is patience for kubectl wait.
const patiently = "--timeout=9m"

var installOnce sync.Once

// The volume groups of each node: that of the shipped class, and one for each test that fills a group,
// so that others can run at the same time.
const (
	placementGroup = "placement" // 16 GiB
	datasetGroup   = "datasets"  // 1 GiB
	growthGroup    = "growth"    // of two devices of 5 GiB
	thinGroup      = "thin"      // 4 GiB, with a thin pool
	movesGroup     = "moves"     // 1 GiB
	userGroup      = "user"      // 2 GiB, only on node1, with as much left on a partition beside it
)

// install does what a user does: it applies the manifests and creates volume groups on each node.
func install(t *testing.T) {
	t.Helper()
	installOnce.Do(func() {
		ctx := deadline(t, 2*patience)
		kubectl(ctx, t, "apply", "-f", installer(ctx, t, shipped(t, "installer")))
		rolledOut := func(what string) {
			kubectl(ctx, t, "-n", "flexlvm-system", "rollout", "status", what, patiently)
		}
		rolledOut("daemonset/flexlvm-installer") // it installs the driver, which creates the groups
		// In parallel, because LVM and udev mostly wait for each other.
		failed := make(chan error, 2)
		nodes := []string{"node1", "node2"}
		for _, node := range nodes {
			go func() {
				out, err := shared.Node(ctx, node, "sh", "-c", fmt.Sprintf(`set -e; { echo label: gpt; printf ',%%s\n' 16G 16G 1G 5G 5G 4G 1G 2G 2G; } | sfdisk -q /dev/vdb; udevadm settle
				%[1]s vg create /dev/vdb1; %[1]s vg create --name %[2]s /dev/vdb2; %[1]s vg create --name %[3]s /dev/vdb3
				%[1]s vg create --name %[4]s /dev/vdb4 /dev/vdb5; %[1]s vg create --name %[5]s --thin /dev/vdb6; %[1]s vg create --name %[6]s /dev/vdb7
				%[1]s doctor`,
					driver, placementGroup, datasetGroup, growthGroup, thinGroup, movesGroup))
				if err != nil {
					err = fmt.Errorf("on %s: %w: %s", node, err, out)
				}
				failed <- err
			}()
		}
		rolledOut("deployment/flexlvm-provisioner")
		rolledOut("daemonset/flexlvm-gc")
		for range nodes {
			require.NoError(t, <-failed)
		}
	})
}

// installer writes the manifests of a folder to a file. Its installer is probed soon, and two arguments
// are changed: released volumes may be evicted immediately, as none of these tests waits two minutes,
// and a node can be an NFS server.
func installer(ctx context.Context, t *testing.T, folder string) string {
	t.Helper()
	const minAge = "--min-age=2m"
	overlay := t.TempDir()
	require.NoError(t, cluster.Overlay(overlay, folder, cluster.ProbedSoon))
	manifests := kubectl(ctx, t, "kustomize", overlay)
	require.Equal(t, 1, strings.Count(manifests, minAge))
	path := filepath.Join(t.TempDir(), "installer.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(manifests, "- "+minAge, "- --min-age=0s\n        - --nfs-export=/srv/nfs", 1)), 0o600))
	return path
}

// shipped returns the path of a file of the repository.
func shipped(t *testing.T, name string) string {
	t.Helper()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	return filepath.Join(root, name)
}

// tenant is a test's namespace in a cluster with flexlvm installed.
type tenant struct {
	ctx       context.Context
	t         *testing.T
	namespace string
}

func newTenant(t *testing.T, namespace string) *tenant {
	t.Helper()
	install(t)
	ctx := deadline(t, 5*patience)
	api, object := apiClient(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	require.NoError(t, api.Create(ctx, object))
	t.Cleanup(func() { require.NoError(t, api.Delete(context.WithoutCancel(ctx), object)) })
	// Pods are refused until the namespace has its service account.
	await.Until(t, time.Minute, func() string {
		err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
		return await.Missing(err == nil, "namespace %s has no service account: %v", namespace, err)
	})
	n := &tenant{ctx: ctx, t: t, namespace: namespace}
	n.ifFailed(func(ctx context.Context) (string, error) {
		return shared.Kubectl(ctx, "-n", namespace, "get", "events,pods,pvc", "-o", "wide")
	})
	return n
}

func (n *tenant) kubectl(args ...string) string {
	n.t.Helper()
	return kubectl(n.ctx, n.t, append([]string{"-n", n.namespace}, args...)...)
}

// ask changes a claim's requested size.
func (n *tenant) ask(claim, size string) {
	n.t.Helper()
	n.kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
}

// apply applies a manifest and returns the API server's error.
func (n *tenant) apply(manifest string) error {
	n.t.Helper()
	return applyIn(n.ctx, n.t, n.namespace, manifest)
}

// examplesApplied is held while an example is applied, because kubectl fails if another creates the
// same class meanwhile.
var examplesApplied sync.Mutex

// applyExample applies a file of examples/, which another test may apply, too.
func (n *tenant) applyExample(file string) {
	n.t.Helper()
	examplesApplied.Lock()
	defer examplesApplied.Unlock()
	n.kubectl("apply", "--validate=strict", "-f", shipped(n.t, "examples/"+file))
}

// run applies pods with their other objects, and waits until they are Ready.
func (n *tenant) run(manifests ...string) {
	n.t.Helper()
	require.NoError(n.t, n.apply(strings.Join(manifests, "\n---\n")))
	n.ready()
}

// deleteStatefulSet deletes a StatefulSet and waits until its pods are gone.
func (n *tenant) deleteStatefulSet(name string) {
	n.t.Helper()
	n.kubectl("delete", "statefulset", name, "--cascade=foreground")
	await.Until(n.t, patience, func() string {
		left := n.kubectl("get", "pods", "-o", "name")
		return await.Missing(left == "", "these pods are left: %s", left)
	})
}

// exec runs a line of shell in a pod, which must succeed.
func (n *tenant) exec(pod, line string) string {
	n.t.Helper()
	out, err := n.tryExec(pod, line)
	require.NoError(n.t, err, out)
	return out
}

func (n *tenant) tryExec(pod, line string) (string, error) {
	n.t.Helper()
	began := time.Now()
	out, err := shared.Exec(n.ctx, n.namespace, pod, "sh", "-c", line)
	n.t.Logf("%s %5.1fs in pod %s/%s: %s", began.Format(time.TimeOnly), time.Since(began).Seconds(), n.namespace, pod, line)
	return out, err
}

// written waits until a pod's container has written that many lines to a file, and returns the file: a
// pod without a readiness probe is Ready before its shell has done anything.
func (n *tenant) written(pod, file string, lines int) string {
	n.t.Helper()
	return n.exec(pod, fmt.Sprintf(`for i in $(seq 600); do
if [ -e %[1]s ] && [ $(wc -l <%[1]s) -ge %[2]d ]; then break; fi
sleep 0.2
done
cat %[1]s`, file, lines))
}

// execFails runs a line of shell in a pod that must fail, and returns the error.
func (n *tenant) execFails(pod, line string) string {
	n.t.Helper()
	out, err := n.tryExec(pod, line)
	require.Error(n.t, err, out)
	return err.Error()
}

// df returns total and used bytes as the pod sees them.
func (n *tenant) df(pod string) (total, used int64) {
	n.t.Helper()
	out := n.exec(pod, "stat -f -c '%S %b %f' /data")
	var block, blocks, free int64
	_, err := fmt.Sscan(out, &block, &blocks, &free)
	require.NoError(n.t, err, out)
	return block * blocks, block * (blocks - free)
}

// claim returns a claim of the shipped class.
func claim(name, size string, more ...string) string {
	return claimOf("flexlvm", name, size, more...)
}

// claimOf returns a claim of a class.
func claimOf(class, name, size string, more ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: %s
spec:
  storageClassName: %s
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
  %s
`, name, class, size, strings.Join(more, "\n  "))
}

// pod is a sleeping pod with a claim at /data. Without an image or a RuntimeClass of its own it uses
// its node's network and hostname.
type pod struct {
	name, claim string
	node        string // the node it must run on; any if empty
	readOnly    bool
	security    string // a securityContext, as YAML in one line
	command     string // what the shell does before it sleeps
	runtime     string // a RuntimeClass; containerd's default if empty
	limits      string // of the container, as YAML in one line
	image       string // an image with a shell; cluster.BusyboxImage if empty
}

func (p pod) manifest() string {
	node, command := "", "true"
	if p.node != "" {
		node = "kubernetes.io/hostname: " + p.node
	}
	if p.command != "" {
		command = p.command
	}
	security := "{}"
	if p.security != "" {
		security = p.security
	}
	runtime := ""
	if p.runtime != "" {
		runtime = "runtimeClassName: " + p.runtime
	}
	limits := "{}"
	if p.limits != "" {
		limits = p.limits
	}
	image := cluster.BusyboxImage
	if p.image != "" {
		image = p.image
	}
	// A virtual node takes seconds to set up and tear down a pod's network, which no test of volumes
	// needs. A program of another image may listen on ports, and a test of a runtime must use all of
	// it.
	hostNetwork := p.image == "" && p.runtime == ""
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
  %s
  nodeSelector: {%s}
  securityContext: %s
  hostNetwork: %t
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %s
    command: [sh, -c, %q]
    resources: {limits: %s}
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: %s, readOnly: %t}
`, p.name, runtime, node, security, hostNetwork, image, command+"; "+cluster.Sleep, limits, p.claim, p.readOnly)
}
