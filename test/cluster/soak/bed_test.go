//go:build cluster

package soak_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	system    = "flexlvm-system"
	namespace = "soak"
	group     = "flexlvm"
	driver    = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm"
	immediate = "soak-immediate"
	stranger  = "stranger" // a logical volume that is not flexlvm's
	minAge    = 5 * time.Second
	// killedLogs is where a node keeps the logs of its killed daemons.
	killedLogs = "/var/log/soak"
)

// classes are the classes that claims choose from. Some are listed more often to be chosen more often.
var classes = []string{"flexlvm", "flexlvm", "flexlvm", "flexlvm", "soak-zero", immediate}

const classManifests = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: soak-immediate}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {volumeGroup: flexlvm, reclaim: immediate, wipe: discard}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: soak-zero}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {volumeGroup: flexlvm, wipe: zero}
`

// daemonPatch sets the daemon's arguments, with the minimum age. It is probed soon also by a kubelet that
// was killed, and so is the provisioner.
const daemonPatch = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: flexlvm-gc, namespace: flexlvm-system}
spec:
  template:
    spec:
      containers:
        - name: gc
          args: [--min-age=%s, --high-threshold-percent=90, --low-threshold-percent=80]
          readinessProbe: {periodSeconds: 1}
`

// bed is a cluster with flexlvm on it.
type bed struct {
	*cluster.Cluster
	client    kubernetes.Interface
	nodes     []string
	strangers map[string]string // checksums, by node
}

// start starts the bed, which is stopped after the test.
func start(t *testing.T, s settings) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // a cold run builds everything
	defer cancel()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	c, err := cluster.StartShipped(ctx, cluster.Config{Name: fmt.Sprintf("soak-%d", os.Getpid()),
		Nodes: s.nodes, DiskSize: s.diskMiB() << 20, Log: os.Stderr})
	require.NoError(t, err)
	b := &bed{Cluster: c, strangers: map[string]string{}}
	for i := range s.nodes {
		b.nodes = append(b.nodes, fmt.Sprintf("node%d", i+1))
	}
	t.Cleanup(func() { b.stop(t) })
	config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	require.NoError(t, err)
	config.Dial, config.QPS, config.Burst = c.Dial, 500, 1000
	b.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)

	for _, node := range b.nodes {
		b.prepare(ctx, t, node)
	}
	overlay := t.TempDir()
	require.NoError(t, cluster.Overlay(overlay, filepath.Join(source, "installer"), cluster.ProbedSoon, cluster.ProvisionerProbedSoon, fmt.Sprintf(daemonPatch, minAge)))
	b.kubectl(ctx, t, nil, "apply", "-k", overlay)
	b.rolledOut(ctx, t)
	b.kubectl(ctx, t, strings.NewReader(classManifests), "apply", "-f", "-")
	for _, node := range b.nodes {
		b.onNode(ctx, t, node, driver+" vg create /dev/vdb")
		b.strangers[node] = b.onNode(ctx, t, node, "lvcreate -qq -Wy -y -L 8m -n "+stranger+" "+group+
			" && dd if=/dev/urandom of=/dev/"+group+"/"+stranger+" bs=1M count=8 conv=fsync 2>/dev/null; sha256sum /dev/"+group+"/"+stranger)
	}
	b.kubectl(ctx, t, nil, "create", "namespace", namespace)
	b.kubectl(ctx, t, nil, "-n", namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=4m")
	return b
}

// prepare keeps the logs of all killed containers, because kubelet keeps only the last one.
func (b *bed) prepare(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	b.onNode(ctx, t, node, `mkdir `+killedLogs+`
		(while sleep 10; do
			for log in /var/log/pods/`+system+`_flexlvm-gc-*/gc/*.log; do ln -f $log `+killedLogs+`/${log##*/}; done
		done) >/dev/null 2>&1 &`)
}

func (b *bed) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	if t.Failed() || os.Getenv("SOAK_LOGS") == "1" {
		b.keep(ctx, t)
	}
	require.NoError(t, b.Stop(ctx))
}

// keep saves everything needed to analyse a failure: all logs, also of containers and drivers, and the
// state of the cluster and its nodes.
func (b *bed) keep(ctx context.Context, t *testing.T) {
	dir, err := b.KeepLogs()
	if err != nil {
		t.Log(err)
		return
	}
	t.Log("all logs are kept in", dir)
	save := func(name, out string, err error) {
		if err != nil {
			out += "\n" + err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(out), 0o644); err != nil {
			t.Log(err)
		}
	}
	out, err := b.Kubectl(ctx, "get", "nodes,nodestorages,pv,pvc,pods,events", "-A", "-o", "yaml")
	save("objects.yaml", out, err)
	for _, node := range b.nodes {
		out, err := b.Node(ctx, node, "sh", "-c", driver+" volumes list; lvs -a -o +lv_tags; cat /proc/self/mountinfo; "+
			"for log in $(ls -v "+killedLogs+"/*) /var/log/pods/"+system+"_*-[ip]*/*/*.log /var/log/flexlvm/*; do echo; echo \"== $log\"; cat $log; done")
		save(node+"-inside.txt", out, err)
	}
}

func (b *bed) kubectl(ctx context.Context, t *testing.T, stdin *strings.Reader, args ...string) string {
	t.Helper()
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	out, err := b.KubectlInput(ctx, stdin, args...)
	require.NoError(t, err, out)
	return out
}

func (b *bed) onNode(ctx context.Context, t *testing.T, node, script string) string {
	t.Helper()
	out, err := b.Node(ctx, node, "sh", "-c", script)
	require.NoError(t, err, out)
	return out
}

func (b *bed) rolledOut(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, what := range []string{"daemonset/flexlvm-installer", "daemonset/flexlvm-gc", "deployment/flexlvm-provisioner"} {
		b.kubectl(ctx, t, nil, "-n", system, "rollout", "status", what, "--timeout=4m")
	}
}

// rooms returns how much of each group the live claims may use at the same time. The rest is for
// released volumes, most of which therefore have to be evicted.
func (b *bed) rooms(t *testing.T) map[string]volume.Bytes {
	t.Helper()
	const percent = 65
	rooms := map[string]volume.Bytes{}
	for _, node := range b.nodes {
		out := b.onNode(t.Context(), t, node, "vgs --noheadings --units b --nosuffix -o vg_size "+group)
		size, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		require.NoError(t, err)
		rooms[node] = volume.Bytes(size) * percent / 100
	}
	return rooms
}

// nodeStorage returns a node's report as JSON.
func (b *bed) nodeStorage(ctx context.Context, node string) ([]byte, error) {
	return b.client.CoreV1().RESTClient().Get().AbsPath("/apis/flexlvm.io/v1/nodestorages/" + node).DoRaw(ctx)
}

func (b *bed) claim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	return b.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}
