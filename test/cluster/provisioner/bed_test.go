//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	system  = "flexlvm-system"
	account = "flexlvm-provisioner"
	longest = 9 * time.Minute // the limit of every wait; seconds on an idle machine

	groupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S" // of every simulated volume group
)

// longNode is longer than a label's value may be.
var longNode = "sim-3." + strings.Repeat("rack-12.", 9) + "example.org"

// bed is a control plane with the shipped manifests, simulated nodes and the provisioner's program.
type bed struct {
	cluster    *cluster.Cluster
	client     kubernetes.Interface
	storage    *kube.Client
	config     *rest.Config
	source     string // root of the checkout
	dir        string // for files of this test
	binary     string
	kubeconfig string        // of the provisioner's service account
	command    []string      // of the provisioner's program, if not the main one
	flags      []string      // of the provisioner, in addition to the usual ones
	running    *atomic.Int32 // the number of running provisioners
}

// beds counts the started beds, which run in parallel.
var beds atomic.Int32

// start starts the bed, which is stopped after the test.
func start(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // a cold run builds Kubernetes
	defer cancel()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	b := &bed{source: source, dir: t.TempDir(), running: &atomic.Int32{}}
	b.binary = filepath.Join(b.dir, "provisioner")
	require.NoError(t, built.Program(ctx, b.binary, "./cmd/provisioner"))

	b.cluster, err = cluster.Start(ctx, cluster.Config{
		Name: fmt.Sprintf("provisioner-%d-%d", os.Getpid(), beds.Add(1)), ControlPlaneOnly: true, Log: os.Stderr,
		ControllerManagerFlags: []string{"--node-monitor-grace-period=24h"}, // the nodes have no kubelets
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		require.NoError(t, b.cluster.Stop(ctx))
	})
	b.config, err = clientcmd.BuildConfigFromFlags("", b.cluster.AdminKubeconfig())
	require.NoError(t, err)
	b.config.Dial, b.config.QPS, b.config.Burst = b.cluster.Dial, 500, 1000
	b.client, err = kubernetes.NewForConfig(b.config)
	require.NoError(t, err)
	b.storage, err = kube.NewClient(b.config)
	require.NoError(t, err)

	b.simulateNodes(t, "sim-1", "sim-2", longNode)
	b.kubectl(t, "apply", "-k", filepath.Join(source, "installer"))
	require.NoError(t, b.cluster.Established(t.Context()))
	b.kubeconfig = b.accountKubeconfig(t, account)
	return b
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	out, err := b.cluster.Kubectl(ctx, args...)
	require.NoError(t, err)
	return out
}

// apply runs kubectl apply on a manifest. The error is the server's answer.
func (b *bed) apply(t *testing.T, manifest string, args ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	_, err := b.cluster.KubectlInput(ctx, strings.NewReader(manifest), append([]string{"apply", "-f", "-"}, args...)...)
	return err
}

// accountKubeconfig returns a kubeconfig with the token of a provisioner's service account, so that
// every test also tests its RBAC.
func (b *bed) accountKubeconfig(t *testing.T, account string) string {
	t.Helper()
	path := filepath.Join(b.dir, account+".kubeconfig")
	require.NoError(t, b.cluster.AccountKubeconfig(t.Context(), system, account, path))
	return path
}

// simulateNodes creates Nodes that are Ready for the scheduler, and renews their leases as kubelet
// does.
func (b *bed) simulateNodes(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		node, err := b.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: hostname(name), corev1.LabelOSStable: "linux",
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		room := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100"), corev1.ResourceMemory: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("1000"),
		}
		node.Status.Capacity, node.Status.Allocatable = room, room
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
		node.ResourceVersion = "" // the controller manager may have written to it already
		_, err = b.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	go b.heartbeats(t.Context(), names)
}

// roomy is the space that a simulated node reports by default.
const roomy = 10 * volume.TiB

// report reports the space for PersistentVolumes in a simulated node's groups, as its daemon would.
func (b *bed) report(t *testing.T, node string, pools map[string]volume.Bytes) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also at the end of a test
	storage, err := b.storage.NodeStorage(ctx, node)
	if apierrors.IsNotFound(err) {
		var owner *corev1.Node
		owner, err = b.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		require.NoError(t, err)
		storage, err = b.storage.CreateNodeStorage(ctx, &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{
			Name: node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: owner.UID}},
		}})
	}
	require.NoError(t, err)
	storage.Status.Pools = nil
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		room := *resource.NewQuantity(int64(pools[name]), resource.BinarySI)
		storage.Status.Pools = append(storage.Status.Pools, flexlvmv1.Pool{
			Name: name, UUID: groupUUID, Layout: "linear", Size: room, Free: room, Allocatable: room,
			ExtentSize: resource.MustParse("4Mi"),
		})
	}
	_, err = b.storage.UpdateNodeStorageStatus(ctx, storage)
	require.NoError(t, err)
}

// reportRoomy makes all simulated nodes report space for everything.
func (b *bed) reportRoomy(t *testing.T) {
	t.Helper()
	for _, node := range []string{"sim-1", "sim-2", longNode} {
		b.report(t, node, map[string]volume.Bytes{"flexlvm": roomy, "fast": roomy})
	}
}

// hostname returns a simulated node's hostname. It differs from the node's name, so that a mix-up of
// the two is noticed.
func hostname(node string) string { return "host-of-" + node[:5] }

func (b *bed) heartbeats(ctx context.Context, names []string) {
	leases := b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		now, seconds := metav1.NowMicro(), int32(40)
		for _, name := range names {
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now, LeaseDurationSeconds: &seconds},
			}
			// An API server that a test has stopped is back before a lease expires.
			if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err == nil {
				continue
			}
			if old, err := leases.Get(ctx, name, metav1.GetOptions{}); err == nil {
				old.Spec = lease.Spec
				_, _ = leases.Update(ctx, old, metav1.UpdateOptions{})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
