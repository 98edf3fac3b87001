//go:build cluster

package gc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	node    = "node1"
	system  = "flexlvm-system"
	daemon  = "flexlvm-gc"
	driver  = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm"
	longest = 8 * time.Minute // the limit of every wait; seconds on an idle machine
	mib     = 1 << 20
)

// The node's disk has partitions with volume groups: one for four of the smallest volumes and no fifth,
// one for each layout, and a wide one.
const (
	wide               = "flexlvm" // the group of the shipped class
	small              = "small"
	smallMiB, leastMiB = 1340, 300 // the partition's size, and the size of the smallest volume's device
)

// bed is a cluster of one node with flexlvm on it.
type bed struct {
	*cluster.Cluster
	client  kubernetes.Interface
	dynamic dynamic.Interface
	uid     string // of the cluster
	began   time.Time
	args    []string // of the daemon, in addition to the shipped ones
}

// beds counts the started beds, which run in parallel.
var beds atomic.Int32

// start starts the bed, which is stopped after the test. The daemon runs with args.
func start(t *testing.T, args ...string) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // a cold run builds everything
	defer cancel()
	began := time.Now()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	c, err := cluster.StartShipped(ctx, cluster.Config{Name: fmt.Sprintf("gc-%d-%d", os.Getpid(), beds.Add(1)), DiskSize: 14 << 30, BlankDisks: 2, Log: os.Stderr})
	require.NoError(t, err)
	b := &bed{Cluster: c, began: began}
	t.Cleanup(func() { b.stop(t) })
	config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	require.NoError(t, err)
	config.Dial, config.QPS, config.Burst = c.Dial, 500, 1000
	b.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	b.dynamic, err = dynamic.NewForConfig(config)
	require.NoError(t, err)
	kubeSystem, err := b.client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	b.uid = string(kubeSystem.UID)

	b.install(t, filepath.Join(source, "installer"), args)
	b.rolledOut(t, "daemonset/flexlvm-installer")
	b.onNode(t, fmt.Sprintf(`{ echo label: gpt; for size in %dM 540M 540M 540M 850M 850M 1000M ''; do echo ,$size; done; } | sfdisk -q /dev/vdb; udevadm settle
		vgcreate -qq --metadatasize 16m %s /dev/vdb1; vgcreate -qq --metadatasize 16m %s /dev/vdb8
		%[4]s vg create --name %[5]s /dev/vdb2 /dev/vdb3 /dev/vdb4
		%[4]s vg create --name %[6]s /dev/vdb5 /dev/vdb6
		%[4]s vg create --name %[7]s --thin /dev/vdb7`, smallMiB, small, wide, driver, stripedGroup, mirrorGroup, thinGroup))
	b.rolledOut(t, "deployment/flexlvm-provisioner", "daemonset/"+daemon)
	b.classes(t)
	b.say(t, "flexlvm is installed")
	return b
}

// install applies the manifests, with the daemon's arguments.
func (b *bed) install(t *testing.T, manifests string, args []string) {
	t.Helper()
	b.args = args
	patch := daemonPatch(daemonSpec(args))
	patch["apiVersion"], patch["kind"] = "apps/v1", "DaemonSet"
	patch["metadata"] = map[string]any{"name": daemon, "namespace": system}
	overlay := t.TempDir()
	require.NoError(t, cluster.Overlay(overlay, manifests, cluster.ProbedSoon, cluster.ProvisionerProbedSoon, encoded(t, patch)))
	b.kubectl(t, "apply", "-k", overlay)
}

func (b *bed) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if t.Failed() {
		kept, err := b.KeepLogs()
		t.Log("all logs are kept in", kept, err)
	}
	require.NoError(t, b.Stop(ctx))
}

// say logs the test's progress.
func (b *bed) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%4.0fs %s", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// reconfigure sets the daemon's arguments in addition to the shipped defaults.
func (b *bed) reconfigure(t *testing.T, args ...string) {
	t.Helper()
	b.args = args
	b.patchDaemon(t, daemonSpec(args))
}

// daemonSpec returns the part of the spec of the daemon's pods that the tests change.
func daemonSpec(args []string) map[string]any {
	return map[string]any{"containers": []any{map[string]any{
		"name": "gc", "args": append([]string{"--address=:9809"}, args...),
		"readinessProbe": map[string]any{"periodSeconds": 1},
	}}}
}

// daemonPatch returns a patch of the DaemonSet with a spec of its pods.
func daemonPatch(spec map[string]any) map[string]any {
	return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}
}

func encoded(t *testing.T, patch map[string]any) string {
	t.Helper()
	content, err := json.Marshal(patch)
	require.NoError(t, err)
	return string(content)
}

// configure is reconfigure, then waits until the new daemon runs. It does nothing if the daemon already
// has these arguments.
func (b *bed) configure(t *testing.T, args ...string) {
	t.Helper()
	if slices.Equal(args, b.args) {
		return
	}
	b.reconfigure(t, args...)
	b.rolledOut(t, "daemonset/"+daemon)
	b.say(t, "the daemon runs with %s", strings.Join(args, " "))
}

func (b *bed) rolledOut(t *testing.T, workloads ...string) {
	t.Helper()
	for _, what := range workloads {
		b.kubectl(t, "-n", system, "rollout", "status", what, "--timeout=4m")
	}
}

// patchDaemon changes the spec of the daemon's pods.
func (b *bed) patchDaemon(t *testing.T, spec map[string]any) {
	t.Helper()
	_, err := b.client.AppsV1().DaemonSets(system).Patch(t.Context(), daemon, types.StrategicMergePatchType, []byte(encoded(t, daemonPatch(spec))), metav1.PatchOptions{})
	require.NoError(t, err)
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	defer cancel()
	out, err := b.Kubectl(ctx, args...)
	require.NoError(t, err, out)
	return out
}

// apply runs kubectl apply on manifests.
func (b *bed) apply(t *testing.T, manifests string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	out, err := b.KubectlInput(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	require.NoError(t, err, manifests)
	return out
}

// onNode runs a script on the node, which must succeed. It also works in cleanups.
func (b *bed) onNode(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), longest)
	defer cancel()
	out, err := b.Node(ctx, node, "sh", "-c", "set -e\n"+script)
	require.NoError(t, err, out)
	return out
}

func ptr[T any](v T) *T { return &v }
