//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/test/await"
)

// The group of these tests, and its size.
const (
	growGroup = "grow"
	growSize  = "100Gi"
)

// growers creates a class whose volumes are on sim-1, and bound claims of 1 GiB of that class.
func (s *space) growers(names ...string) {
	s.t.Helper()
	s.class(s.name, func(c *storagev1.StorageClass) {
		c.VolumeBindingMode, c.AllowVolumeExpansion = ptr(storagev1.VolumeBindingImmediate), ptr(true)
		c.Parameters = map[string]string{"volumeGroup": growGroup}
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: corev1.LabelHostname, Values: []string{hostname("sim-1")}},
		}}}
	})
	for _, name := range names {
		s.claim(name, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Spec.Resources = &s.name, requests("1Gi")
		})
	}
	for _, name := range names {
		s.volumeOf(name)
	}
}

// pool makes sim-1 report its group: the free space, the reclaimable space, and what PersistentVolumes
// may use altogether.
func (b *bed) pool(t *testing.T, free, reclaimable, allocatable string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		storage, err := b.storage.NodeStorage(t.Context(), "sim-1")
		require.NoError(t, err)
		storage.Status.Pools = slices.DeleteFunc(storage.Status.Pools, func(p flexlvmv1.Pool) bool { return p.Name == growGroup })
		storage.Status.Pools = append(storage.Status.Pools, flexlvmv1.Pool{
			Name: growGroup, UUID: groupUUID, Layout: "linear", Size: resource.MustParse(growSize), ExtentSize: resource.MustParse("4Mi"),
			Free: resource.MustParse(free), Reclaimable: resource.MustParse(reclaimable), Allocatable: resource.MustParse(allocatable),
		})
		_, err = b.storage.UpdateNodeStorageStatus(t.Context(), storage)
		return err
	}))
}

func (s *space) pvc(name string) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return claim
}

// grow requests a size.
func (s *space) grow(name, size string) {
	s.t.Helper()
	_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Patch(s.t.Context(), name, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)), metav1.PatchOptions{})
	require.NoError(s.t, err)
}

// says waits until a claim reports that it does not grow, and why.
func (s *space) says(name, reason string, parts ...string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		claim := s.pvc(name)
		for _, c := range claim.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimControllerResizeError && c.Reason == reason && containsAll(c.Message, parts) {
				is := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
				return await.Missing(is == corev1.PersistentVolumeClaimControllerResizeInfeasible, "claim %s says %s and is %q", name, reason, is)
			}
		}
		return fmt.Sprintf("claim %s does not say %s %q: %+v; events %v", name, reason, parts, claim.Status, s.events(s.name, "PersistentVolumeClaim", name))
	})
}

// granted waits until a claim's PersistentVolume has the size and its node is to grow it.
func (s *space) granted(name, size string) {
	s.t.Helper()
	want := resource.MustParse(size)
	await.Until(s.t, longest, func() string {
		claim := s.pvc(name)
		volume, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
		require.NoError(s.t, err)
		has, allocated := volume.Spec.Capacity[corev1.ResourceStorage], claim.Status.AllocatedResources[corev1.ResourceStorage]
		is := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		return await.Missing(has.Cmp(want) == 0 && allocated.Cmp(want) == 0 && is == corev1.PersistentVolumeClaimNodeResizePending &&
			volume.Annotations["flexlvm.io/growing-to"] == "", "claim %s is not granted %s: volume %s %v, status %+v", name, size, has.String(), volume.Annotations, claim.Status)
	})
}

// kubelet acts as a kubelet that has grown a volume, and waits until the claim is up to date.
func (s *space) kubelet(name, size string) {
	s.t.Helper()
	require.NoError(s.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		claim := s.pvc(name)
		claim.Status.Capacity, claim.Status.AllocatedResourceStatuses, claim.Status.Conditions = requests(size).Requests, nil, nil
		_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).UpdateStatus(s.t.Context(), claim, metav1.UpdateOptions{})
		return err
	}))
	await.Until(s.t, longest, func() string {
		volume, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), s.pvc(name).Spec.VolumeName, metav1.GetOptions{})
		require.NoError(s.t, err)
		_, resizes := volume.Annotations["volume.alpha.kubernetes.io/pre-resize-capacity"]
		return await.Missing(!resizes, "nobody has seen that %s has grown", name)
	})
	claim := s.pvc(name)
	require.Empty(s.t, claim.Status.AllocatedResourceStatuses)
	for _, c := range claim.Status.Conditions {
		require.EqualValues(s.t, "Unused", c.Type, "%+v", c) // kube-controller-manager's, for claims without pods
	}
}

// testGrowth checks what claims report while the real kube-controller-manager tries to grow them, and
// that each state survives a restart of the provisioner.
func (b *bed) testGrowth(t *testing.T) {
	b.pool(t, "60Gi", "0", "60Gi")
	s := b.namespace(t, "growth")
	p := b.run(t, 8087)
	b.ready(t, 8087)
	s.growers("granted", "refused", "waiting", "making-room")

	s.grow("granted", "4Gi")
	s.granted("granted", "4Gi")
	s.event(s.name, "PersistentVolumeClaim", "granted", "GrowthGranted", "grows from 1Gi to 4Gi")

	s.grow("refused", "400Ti")
	s.says("refused", "Refused", "cannot grow from 1Gi to 400Ti", `all of volume group "grow" is 107374182400 bytes (100 GiB)`, "anything above 1Gi")
	s.event(s.name, "PersistentVolumeClaim", "refused", "GrowthRefused")
	s.event(s.name, "PersistentVolumeClaim", "refused", "VolumeResizeFailed", "grows once the flexlvm provisioner has reserved room for it")

	s.grow("waiting", "90Gi")
	s.says("waiting", "Waiting", "waits to grow from 1Gi to 90Gi", "can still promise")

	// The free space is promised to others, and evictions would provide enough.
	b.pool(t, "8Gi", "40Gi", "60Gi")
	s.grow("making-room", "30Gi")
	s.says("making-room", "MakingRoom", "grows from 1Gi to 30Gi as soon as its room is free")
	promised := s.volumeOf("making-room")
	require.Equal(t, "32212254720", promised.Annotations["flexlvm.io/growing-to"])
	require.Equal(t, "1Gi", ptr(promised.Spec.Capacity[corev1.ResourceStorage]).String())

	p.kill()
	b.run(t, 8088)
	b.ready(t, 8088)
	leads(t, b, 8088)
	b.caughtUp(t)
	s.granted("granted", "4Gi")
	s.says("refused", "Refused")
	s.says("waiting", "Waiting")
	s.says("making-room", "MakingRoom")

	s.kubelet("granted", "4Gi")
	b.pool(t, "48Gi", "0", "60Gi") // the daemon has evicted
	s.granted("making-room", "30Gi")
	s.grow("refused", "2Gi")
	s.granted("refused", "2Gi")
	s.kubelet("refused", "2Gi")
	s.grow("waiting", "3Gi")
	s.granted("waiting", "3Gi")
	s.kubelet("making-room", "30Gi")
	s.kubelet("waiting", "3Gi")
}

// testGrowthTooLarge: an impossible capacity that Kubernetes wrote before the policy existed is set
// back.
func (b *bed) testGrowthTooLarge(t *testing.T) {
	b.pool(t, "60Gi", "0", "60Gi")
	s := b.namespace(t, "too-large")
	p := b.run(t, 8087)
	b.ready(t, 8087)
	s.growers("old")
	p.kill()
	b.kubectl(t, "delete", "validatingadmissionpolicybinding", "growth.flexlvm.io")
	s.grow("old", "600Ti")
	await.Until(t, longest, func() string {
		has := s.volumeOf("old").Spec.Capacity[corev1.ResourceStorage]
		return await.Missing(has.String() == "600Ti", "kube-controller-manager has not raised the capacity from %s", has.String())
	})
	b.kubectl(t, "apply", "-k", b.source+"/installer")
	b.run(t, 8088)
	s.says("old", "Refused", "the most that is supported is 500 TiB")
	require.Equal(t, "1Gi", ptr(s.volumeOf("old").Spec.Capacity[corev1.ResourceStorage]).String())
	s.grow("old", "2Gi")
	s.granted("old", "2Gi")
}

// A killer ends the provisioner at one of its writes, before or after the API server has executed it.
type killer struct {
	http.RoundTripper
	mu    sync.Mutex
	left  int // writes that are allowed
	after bool
	kill  context.CancelFunc
}

func (k *killer) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodPatch {
		return k.RoundTripper.RoundTrip(request)
	}
	k.mu.Lock()
	k.left--
	left := k.left
	k.mu.Unlock()
	if left > 0 || left == 0 && k.after {
		response, err := k.RoundTripper.RoundTrip(request)
		if left > 0 {
			return response, err
		}
		if err == nil {
			_ = response.Body.Close()
		}
	}
	k.kill()
	return nil, context.Canceled
}

// testGrowthKilled: the provisioner is killed at each write of a grant, and its successor completes the
// grant.
func (b *bed) testGrowthKilled(t *testing.T) {
	b.pool(t, "60Gi", "0", "60Gi")
	s := b.namespace(t, "growth-killed")
	p := b.run(t, 8087)
	b.ready(t, 8087)
	s.growers("data")
	p.kill()
	size := 1
	for writes := 1; writes <= 3; writes++ {
		for _, after := range []bool{false, true} {
			size++
			to := fmt.Sprintf("%dGi", size)
			s.grow("data", to)
			ctx, cancel := context.WithTimeout(t.Context(), longest)
			b.workInside(ctx, t, func(config *rest.Config) {
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return &killer{RoundTripper: next, left: writes, after: after, kill: cancel}
				})
			})
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			var successor sync.WaitGroup
			successor.Go(func() { b.workInside(ctx, t, func(*rest.Config) {}) })
			s.granted("data", to)
			cancel()
			successor.Wait()
			s.kubelet("data", to)
		}
	}
}

// workInside runs the provisioner's work in this process, with its rights, until ctx ends.
func (b *bed) workInside(ctx context.Context, t *testing.T, change func(*rest.Config)) {
	config := b.as(account)
	change(config)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	storage, err := kube.NewClient(config)
	require.NoError(t, err)
	err = provision.Work(ctx, provision.Config{
		Client: client, Capacities: client, Loss: client, ListNodes: storage.NodeMetadata, Storage: storage, Cluster: "of-a-test", Namespace: system, Metrics: provision.NewMetrics(), Workers: 2, NodeLossGrace: time.Hour,
	})
	require.NoError(t, err)
}

// testGrowthPolicies: only the provisioner can grow a volume, and its right to do so allows nothing
// else.
func (b *bed) testGrowthPolicies(t *testing.T) {
	ctx, s := t.Context(), b.namespace(t, "growth-policies")
	b.pool(t, "60Gi", "0", "60Gi")
	b.run(t, 8087)
	b.ready(t, 8087)
	s.growers("data")
	name := s.volumeOf("data").Name
	admin := persistentVolumes{b.client}
	larger, promise := `{"spec":{"capacity":{"storage":"5Gi"}}}`, `{"metadata":{"annotations":{"flexlvm.io/growing-to":"5368709120"}}}`
	expander := b.asUser(t, "system:serviceaccount:kube-system:expand-controller")
	b.refusedSoon(t, "grows once the flexlvm provisioner has reserved room for it", func(dryRun []string) error {
		_, err := b.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, []byte(larger), metav1.PatchOptions{DryRun: dryRun})
		return err
	})
	for _, who := range []persistentVolumes{admin, expander} {
		require.Error(t, who.patch(ctx, name, larger))
		require.Error(t, who.patch(ctx, name, promise))
	}
	require.ErrorContains(t, admin.patch(ctx, name, promise), "only the flexlvm provisioner may write")
	require.NoError(t, admin.patch(ctx, name, `{"spec":{"capacity":{"storage":"900Mi"}}}`), "less is nobody's harm")
	stolen := b.volumesOf(t, b.as(account))
	require.NoError(t, stolen.patch(ctx, name, `{"spec":{"capacity":{"storage":"1Gi"}}}`))
	for _, patch := range []string{
		`{"spec":{"claimRef":{"name":"other"}}}`, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`,
	} {
		b.refusedSoon(t, "the capacity, and the limits on IO", func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
			return err
		})
	}
	for name, driver := range map[string]string{"free": "flexlvm.io/flexlvm", "free-csi": "flexlvm.io"} {
		b.persistentVolume(t, name, "sim-1", driver, corev1.VolumeAvailable)
		require.ErrorContains(t, stolen.patch(ctx, name, larger), "that is bound to a claim")
		require.ErrorContains(t, stolen.patch(ctx, name, promise), "that is bound to a claim")
		require.ErrorContains(t, admin.patch(ctx, name, larger), "grows once the flexlvm provisioner has reserved room for it")
		s.takeBack(ctx, name)
	}

	s.claim("foreign", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.VolumeName = ptr("another"), "nowhere"
		c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "example.org/other"}
	})
	status := func(claim, patch string) error {
		_, err := stolen.CoreV1().PersistentVolumeClaims(s.name).Patch(ctx, claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
	infeasible := `{"status":{"allocatedResourceStatuses":{"storage":"ControllerResizeInfeasible"}}}`
	b.refusedSoon(t, "of claims that it has provisioned", func([]string) error { return status("foreign", infeasible) })
	for patch, says := range map[string]string{
		`{"status":{"capacity":{"storage":"5Gi"}}}`:                                                "a claim's growth and VolumeAttributesClass",
		`{"status":{"phase":"Lost"}}`:                                                              "a claim's growth and VolumeAttributesClass",
		`{"status":{"conditions":[{"type":"Other","status":"True"}]}}`:                             "a claim's growth and VolumeAttributesClass",
		`{"metadata":{"annotations":{"a":"b"}}}`:                                                   "a claim's growth and VolumeAttributesClass",
		`{"status":{"allocatedResources":{"storage":"2Gi"}}}`:                                      "beyond its request",
		`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"}}}`:              "claim to infeasible, or to pending",
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`: "owners of a claim",
	} {
		require.ErrorContains(t, status("data", patch), says, patch)
	}
	require.NoError(t, status("data", `{"status":{"allocatedResources":{"storage":"1Gi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`))
	require.NoError(t, status("data", `{"status":{"allocatedResources":{"storage":"500Mi"},"allocatedResourceStatuses":{"storage":null}}}`), "it may fall")
}

// asUser returns a client that acts as another user.
func (b *bed) asUser(t *testing.T, user string) persistentVolumes {
	t.Helper()
	config := rest.CopyConfig(b.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return b.volumesOf(t, config)
}
