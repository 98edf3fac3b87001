//go:build cluster

package dataset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/built"
)

func ptr[T any](v T) *T { return &v }

// longNode is longer than a label's value may be.
var longNode = "sim-3." + strings.Repeat("rack-12.", 9) + "example.org"

var nodes = []string{"sim-1", "sim-2", longNode, "sim-4"}

// Nodes that a single test changes have a taint that keeps other tests away.
const (
	ownTaint   = "own"
	tolerating = "tolerations: [{key: " + ownTaint + ", operator: Exists}]"
)

// simulateNode creates a Node that is Ready for the scheduler, with the report of a volume group that
// has space.
func (b *bed) simulateNode(t *testing.T, name string, taints ...corev1.Taint) {
	t.Helper()
	ctx := t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: "host-of-" + name[:5], "sim": name[:5],
	}}, Spec: corev1.NodeSpec{Taints: taints}}
	if len(taints) == 0 {
		node.Labels[corev1.LabelOSStable] = "linux" // one of the examples asks for it
	}
	require.NoError(t, b.client.Create(ctx, node))
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100"), corev1.ResourceMemory: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("1000"),
	}
	node.Status.Capacity, node.Status.Allocatable = capacity, capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	node.ResourceVersion = "" // the controller manager may have written to it already
	require.NoError(t, b.client.Status().Update(ctx, node))
	storage := &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{
		Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}},
	}}
	require.NoError(t, b.client.Create(ctx, storage))
	room := resource.MustParse("10Ti")
	storage.Status.Pools = []flexlvmv1.Pool{{
		Name: "flexlvm", UUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Layout: "linear", Size: room, Free: room, Allocatable: room, ExtentSize: resource.MustParse("4Mi"),
	}}
	require.NoError(t, b.client.Status().Update(ctx, storage))
	go b.heartbeat(ctx, name)
}

// heartbeat renews a node's lease as kubelet does.
func (b *bed) heartbeat(ctx context.Context, name string) {
	for tick := time.NewTicker(5 * time.Second); ctx.Err() == nil; {
		now, seconds := metav1.NowMicro(), int32(40)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now, LeaseDurationSeconds: &seconds},
		}
		if b.client.Create(ctx, lease.DeepCopy()) != nil {
			old := &coordinationv1.Lease{}
			if b.client.Get(ctx, client.ObjectKeyFromObject(lease), old) == nil {
				old.Spec = lease.Spec
				_ = b.client.Update(ctx, old) // the next beat tries again
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// provisioner starts the provisioner with only its service account's rights. It runs until kill is
// called.
func (b *bed) provisioner(t *testing.T, binary string) (kill func()) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(b.dir, "provisioner.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	kubeconfig := filepath.Join(b.dir, "account.kubeconfig")
	require.NoError(t, b.cluster.AccountKubeconfig(t.Context(), system, account, kubeconfig))
	shipped := &appsv1.Deployment{}
	require.NoError(t, b.client.Get(t.Context(), client.ObjectKey{Namespace: system, Name: account}, shipped))
	cmd := b.cluster.Command(context.WithoutCancel(t.Context()), binary, "--kubeconfig="+kubeconfig, "--namespace="+system,
		"--address=127.0.0.1:8095", "--loader-image="+shipped.Spec.Template.Spec.Containers[0].Image, "--node-loss-grace=3s", "--lease-duration=10m", "--lease-renew-deadline=9m", "--lease-retry-period=1s")
	// The lease is long because nothing restarts a provisioner that loses it. The predecessor was killed.
	_ = b.client.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "flexlvm.io"}}) // there may be none
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	return sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()
		_ = log.Close()
	})
}

func (b *bed) buildProvisioner(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(b.dir, "provisioner")
	require.NoError(t, built.Program(t.Context(), binary, "./cmd/provisioner"))
	return binary
}

// ownNode creates a node for one test.
func (b *bed) ownNode(t *testing.T, name string) {
	t.Helper()
	b.simulateNode(t, name, corev1.Taint{Key: ownTaint, Effect: corev1.TaintEffectNoSchedule})
}

// space is a namespace of one test.
type space struct {
	*kubelets
	t    *testing.T
	name string
	// labels are the node labels that its datasets have had.
	labels map[string]bool
}

func (k *kubelets) space(t *testing.T, name string) *space {
	return &space{k, t, name, map[string]bool{}}
}

func (k *kubelets) namespace(t *testing.T, name string) *space {
	t.Helper()
	require.NoError(t, k.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	s := k.space(t, name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.what())
		}
	})
	await.Until(t, longest, func() string {
		return await.Missing(k.client.Get(t.Context(), s.key("default"), &corev1.ServiceAccount{}) == nil, "no service account")
	})
	return s
}

func (s *space) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.name, Name: name}
}

// make applies a VolumeManager with these volumes.
func (s *space) make(name string, volumes ...string) {
	s.t.Helper()
	require.NoError(s.t, s.apply(s.t, fmt.Sprintf("apiVersion: flexlvm.io/v1\nkind: VolumeManager\nmetadata: {name: %s, namespace: %s}\nspec:\n  volumes:\n  - %s\n",
		name, s.name, strings.Join(volumes, "\n  - "))))
}

func (s *space) patch(name, patch string) {
	s.t.Helper()
	require.NoError(s.t, s.client.Patch(s.t.Context(), &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}},
		client.RawPatch("application/merge-patch+json", []byte(patch))))
}

func (s *space) get(name string) *flexlvmv1.VolumeManager {
	s.t.Helper()
	vm := &flexlvmv1.VolumeManager{}
	require.NoError(s.t, s.client.Get(s.t.Context(), s.key(name), vm))
	for _, v := range vm.Spec.All() {
		s.labels[s.label(vm, v.ID)] = true
	}
	return vm
}

// status waits until a VolumeManager has a state, and its first volume a message that contains text.
func (s *space) status(name string, state flexlvmv1.State, text string) flexlvmv1.VolumeManagerStatus {
	s.t.Helper()
	var got flexlvmv1.VolumeManagerStatus
	await.Until(s.t, longest, func() string {
		vm := s.get(name)
		got = vm.Status
		is := got.ObservedGeneration == vm.Generation && got.State == state && len(got.Volumes) > 0 && strings.Contains(got.Volumes[0].Message, text)
		content, err := json.MarshalIndent(got, "", " ")
		require.NoError(s.t, err)
		return await.Missing(is, "VolumeManager %s is not %s with %q: %s", name, state, text, content)
	})
	return got
}

// what describes the namespace's objects for the reader of a failed test.
func (s *space) what() string {
	out, err := s.cluster.Kubectl(context.WithoutCancel(s.t.Context()), "get", "vm,pvc,pv,jobs,pods,events", "-n", s.name, "-o", "wide")
	if err != nil {
		return err.Error()
	}
	return out
}

// labelled returns the nodes with the label of the VolumeManager's first dataset.
func (s *space) labelled(name string) []string {
	s.t.Helper()
	vm := s.get(name)
	list := &corev1.NodeList{}
	require.NoError(s.t, s.client.List(s.t.Context(), list, client.HasLabels{s.label(vm, vm.Spec.All()[0].ID)}))
	var out []string
	for _, n := range list.Items {
		out = append(out, n.Name)
	}
	return out
}

// label returns the label of nodes that have a dataset.
func (s *space) label(vm *flexlvmv1.VolumeManager, id string) string {
	return replica.NodeLabel(replica.Hash(s.name, string(vm.UID), id))
}

// claims returns the claims of the namespace by name.
func (s *space) claims() map[string]corev1.PersistentVolumeClaim {
	s.t.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	require.NoError(s.t, s.client.List(s.t.Context(), list, client.InNamespace(s.name)))
	out := map[string]corev1.PersistentVolumeClaim{}
	for _, c := range list.Items {
		out[c.Name] = c
	}
	return out
}

// nothingLeft waits until no object of the namespace's datasets is left, and the namespace's
// VolumeManagers are gone: one whose finalizer stays would remain in Terminating.
func (s *space) nothingLeft() {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		var left []string
		for name := range s.claims() {
			left = append(left, "claim "+name)
		}
		managers := &flexlvmv1.VolumeManagerList{}
		require.NoError(s.t, s.client.List(s.t.Context(), managers, client.InNamespace(s.name)))
		for _, vm := range managers.Items {
			left = append(left, "volumemanager "+vm.Name)
		}
		jobs, pods := &batchv1.JobList{}, &corev1.PodList{}
		require.NoError(s.t, s.client.List(s.t.Context(), jobs, client.InNamespace(s.name), client.HasLabels{replica.LabelOwner}))
		for _, job := range jobs.Items {
			left = append(left, "job "+job.Name)
		}
		require.NoError(s.t, s.client.List(s.t.Context(), pods, client.InNamespace(s.name), client.HasLabels{replica.LabelOwner}))
		for _, pod := range pods.Items {
			left = append(left, "pod "+pod.Name)
		}
		volumes := &corev1.PersistentVolumeList{}
		require.NoError(s.t, s.client.List(s.t.Context(), volumes))
		for _, v := range volumes.Items {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == s.name {
				left = append(left, "volume "+v.Name)
			}
		}
		nodes := &corev1.NodeList{}
		require.NoError(s.t, s.client.List(s.t.Context(), nodes))
		for _, n := range nodes.Items {
			for label := range n.Labels {
				if s.labels[label] {
					left = append(left, "label "+label)
				}
			}
		}
		return await.Missing(len(left) == 0, "left: %v", left)
	})
}

// noLabelLeft checks that no node has the label of any dataset.
func (b *bed) noLabelLeft(t *testing.T) {
	list := &corev1.NodeList{}
	require.NoError(t, b.client.List(t.Context(), list))
	for _, node := range list.Items {
		for label := range node.Labels {
			require.False(t, strings.HasPrefix(label, replica.NodeLabel("")), "node %s still has label %s", node.Name, label)
		}
	}
}

// consumer creates a pod that reads a claim.
func (s *space) consumer(claim string) {
	s.t.Helper()
	require.NoError(s.t, s.client.Create(s.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "consumer"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "busybox:1.36"}},
			Tolerations: []corev1.Toleration{{Key: ownTaint, Operator: corev1.TolerationOpExists}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: true},
			}}},
		},
	}))
}

// nodeOf waits until a pod is scheduled and returns its node.
func (s *space) nodeOf(pod string) (node string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		p := &corev1.Pod{}
		require.NoError(s.t, s.client.Get(s.t.Context(), s.key(pod), p))
		node = p.Spec.NodeName
		return await.Missing(node != "", "pod %s has no node: %v", pod, p.Status.Conditions)
	})
	return node
}

func (s *space) remove(object client.Object) {
	s.t.Helper()
	// As with kubectl, a Job's pods are deleted with it.
	err := s.client.Delete(s.t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground))
	require.True(s.t, err == nil || apierrors.IsNotFound(err), err)
}

func (s *space) claimSize(size string) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-20000):])
}
