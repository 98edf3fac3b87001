//go:build cluster

package provisioner_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// daemon is the service account of the node daemon.
const daemon = "flexlvm-gc"

func (b *bed) testDaemonRights(t *testing.T) {
	b.requireRights(t, daemon, []right{
		{verb: "list", resource: "persistentvolumes", allowed: true},
		{verb: "watch", resource: "persistentvolumes", allowed: true},
		{verb: "patch", resource: "persistentvolumes", allowed: true},
		{verb: "delete", resource: "persistentvolumes", allowed: true},
		{verb: "create", resource: "persistentvolumes"},
		{verb: "update", resource: "persistentvolumes"},
		{verb: "deletecollection", resource: "persistentvolumes"},
		{verb: "list", resource: "pods", allowed: true},
		{verb: "watch", resource: "pods", allowed: true},
		{verb: "delete", resource: "pods", namespace: "default"},
		{verb: "create", resource: "pods", namespace: system},
		{verb: "get", resource: "persistentvolumeclaims", namespace: "default", allowed: true},
		{verb: "update", resource: "persistentvolumeclaims", namespace: "default"},
		{verb: "delete", resource: "persistentvolumeclaims", namespace: "default"},
		{verb: "create", group: "flexlvm.io", resource: "nodestorages", allowed: true},
		{verb: "watch", group: "flexlvm.io", resource: "nodestorages", allowed: true},
		{verb: "delete", group: "flexlvm.io", resource: "nodestorages"},
		{verb: "list", group: "flexlvm.io", resource: "volumegroups", allowed: true},
		{verb: "watch", group: "flexlvm.io", resource: "volumegroups", allowed: true},
		{verb: "create", group: "flexlvm.io", resource: "volumegroups"},
		{verb: "update", group: "flexlvm.io", resource: "volumegroups"},
		{verb: "patch", group: "flexlvm.io", resource: "volumegroups"},
		{verb: "delete", group: "flexlvm.io", resource: "volumegroups"},
		{verb: "get", resource: "nodes", allowed: true},
		{verb: "list", resource: "nodes"},
		{verb: "patch", resource: "nodes"},
		{verb: "get", resource: "namespaces", name: "kube-system", allowed: true},
		{verb: "get", resource: "namespaces", name: "default"},
		{verb: "create", resource: "events", namespace: "default", allowed: true},
		{verb: "get", resource: "secrets", namespace: system},
		{verb: "get", resource: "configmaps", namespace: system},
	})
}

// daemonOn returns the API configuration of a node's daemon: a token that is bound to its pod there.
func (b *bed) daemonOn(t *testing.T, node string) *rest.Config {
	t.Helper()
	pods, err := b.client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + daemon, FieldSelector: "spec.nodeName=" + node,
	})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1, "daemons on %s", node)
	return b.tokenOf(t, &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pods.Items[0].Name, UID: pods.Items[0].UID,
	})
}

// tokenOf returns an API configuration with a new token of the daemon's account.
func (b *bed) tokenOf(t *testing.T, bound *authenticationv1.BoundObjectReference) *rest.Config {
	t.Helper()
	token, err := b.client.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), daemon, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(b.config)
	config.BearerToken = token.Status.Token
	return config
}

func (b *bed) volumesOf(t *testing.T, config *rest.Config) persistentVolumes {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return persistentVolumes{client}
}

// persistentVolumes changes PersistentVolumes as a node daemon does.
type persistentVolumes struct{ kubernetes.Interface }

func (p persistentVolumes) remove(ctx context.Context, name string) error {
	return p.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})
}

func (p persistentVolumes) patch(ctx context.Context, name, patch string) error {
	_, err := p.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// letGo removes flexlvm's finalizer and keeps the others.
func (p persistentVolumes) letGo(ctx context.Context, name string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		v, err := p.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == pv.Finalizer })
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": v.UID, "resourceVersion": v.ResourceVersion, "finalizers": left,
		}})
		if err != nil {
			return err
		}
		return p.patch(ctx, name, string(patch))
	})
}

// persistentVolume creates a PersistentVolume whose claim is already gone, or that has none.
func (b *bed) persistentVolume(t *testing.T, name, node, driver string, phase corev1.PersistentVolumePhase) {
	t.Helper()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{pv.LabelNode: pv.NodeLabelValue(node)}, Finalizers: []string{pv.Finalizer},
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": pv.Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      requests("1Gi").Requests,
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "flexlvm",
			PersistentVolumeSource:        sourceOf(driver),
		},
	}
	if phase == corev1.VolumeReleased {
		volume.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: "gone", UID: "gone"}
	}
	_, err := b.client.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		admin := persistentVolumes{b.client}
		err := admin.remove(ctx, name)
		require.True(t, err == nil || apierrors.IsNotFound(err), err)
		err = admin.letGo(ctx, name)
		require.True(t, err == nil || apierrors.IsNotFound(err), err)
	})
	await.Until(t, longest, func() string {
		v, err := b.client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return await.Missing(v.Status.Phase == phase, "%s is %s", name, v.Status.Phase)
	})
}

// testDaemonVolumes: a daemon deletes PersistentVolumes that were released on its node, and its token
// is good for nothing else.
func (b *bed) testDaemonVolumes(t *testing.T) {
	ctx := t.Context()
	for name, node := range map[string]string{"released": "sim-1", "released-long": longNode, "released-csi": "sim-1"} {
		driver := pv.Driver
		if name == "released-csi" {
			driver = pv.Provisioner
		}
		b.persistentVolume(t, name, node, driver, corev1.VolumeReleased)
		for other, config := range map[string]*rest.Config{
			"sim-2": b.daemonOn(t, "sim-2"), "no node": b.tokenOf(t, nil),
		} {
			daemon := b.volumesOf(t, config)
			require.ErrorContains(t, daemon.remove(ctx, name), "PersistentVolumes of its own node", other)
			require.ErrorContains(t, daemon.letGo(ctx, name), "PersistentVolumes of its own node", other)
		}
		daemon := b.volumesOf(t, b.daemonOn(t, node))
		require.ErrorContains(t, daemon.patch(ctx, name, `{"spec":{"claimRef":{"name":"mine"}}}`), "may only change the finalizer")
		require.ErrorContains(t, daemon.patch(ctx, name, `{"metadata":{"labels":{"flexlvm.io/node":"sim-2"}}}`), "may only change the finalizer")
		require.NoError(t, daemon.remove(ctx, name))
		require.NoError(t, daemon.letGo(ctx, name))
		await.Until(t, longest, func() string {
			_, err := b.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
			return await.Missing(apierrors.IsNotFound(err), "%s is still there: %v", name, err)
		})
	}

	daemon := b.volumesOf(t, b.daemonOn(t, "sim-1"))
	b.persistentVolume(t, "wanted", "sim-1", pv.Driver, corev1.VolumeAvailable)
	require.ErrorContains(t, daemon.letGo(ctx, "wanted"), "only where the PersistentVolume is released or deleted and no claim is bound to it")
	require.ErrorContains(t, daemon.remove(ctx, "wanted"), "may only delete PersistentVolumes that are released")
	for name, driver := range map[string]string{"foreign": "example.org/other", "foreign-csi": "csi.example.org"} {
		b.persistentVolume(t, name, "sim-1", driver, corev1.VolumeReleased)
		require.ErrorContains(t, daemon.remove(ctx, name), "of the driver flexlvm.io/flexlvm")
		require.ErrorContains(t, daemon.letGo(ctx, name), "of the driver flexlvm.io/flexlvm")
	}
}

// sourceOf returns the source of a FlexVolume driver, whose name has a slash, or of a CSI driver.
func sourceOf(driver string) corev1.PersistentVolumeSource {
	if strings.Contains(driver, "/") {
		return corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: driver}}
	}
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "flexlvm/x"}}
}

// testDaemonReports: a daemon writes only its own node's report, and people can read it.
func (b *bed) testDaemonReports(t *testing.T) {
	ctx := t.Context()
	reports := func(node string) dynamic.ResourceInterface {
		client, err := dynamic.NewForConfig(b.daemonOn(t, node))
		require.NoError(t, err)
		return client.Resource(v1.GroupVersion.WithResource("nodestorages"))
	}
	_, err := reports("sim-2").Create(ctx, report(t, "sim-1", ""), metav1.CreateOptions{})
	require.ErrorContains(t, err, `may only write the NodeStorage of its own node: this is "sim-1", its token says "sim-2"`)
	made, err := reports("sim-1").Create(ctx, report(t, "sim-1", ""), metav1.CreateOptions{})
	require.NoError(t, err)
	full := report(t, "sim-1", made.GetResourceVersion())
	_, err = reports("sim-2").UpdateStatus(ctx, full, metav1.UpdateOptions{})
	require.ErrorContains(t, err, "of its own node")
	_, err = reports("sim-1").UpdateStatus(ctx, full, metav1.UpdateOptions{})
	require.NoError(t, err)

	for _, name := range []string{"nodestorages", "nodestorage", "nst"} {
		lines := strings.Split(strings.TrimSpace(b.kubectl(t, "get", name)), "\n")
		require.Equal(t, "NAME READY POOLS SIZE USED FREE RECLAIMABLE PROMISED VOLUMES ORPHANS PRESSURE SHORTFALL SEEN",
			strings.Join(strings.Fields(lines[0]), " "), name)
		require.Len(t, lines, 2)
		require.Regexp(t, `^sim-1 +True +fast,slow +8GiB,1\.81TiB +25%,0% +6GiB,1\.81TiB +1GiB,0B +0B,0B +3 +1 +False +False +\S+ *$`, lines[1])
	}
	require.Contains(t, b.kubectl(t, "get", "flexlvm"), "sim-1", "the category")
	require.Contains(t, b.kubectl(t, "describe", "nodestorage", "sim-1"), "the tools are all there")
	require.Contains(t, b.kubectl(t, "explain", "nodestorage.status.pools.reclaimable"), "may be evicted")
	b.kubectl(t, "delete", "nodestorage", "sim-1")
}

// report returns a report as the daemon writes it.
func report(t *testing.T, node, resourceVersion string) *unstructured.Unstructured {
	t.Helper()
	size := resource.MustParse
	pools := []v1.Pool{
		{Name: "fast", UUID: "u1", Layout: "linear", Size: size("8Gi"), Free: size("6Gi"), Reclaimable: size("1Gi"), UsedPercent: 25},
		{Name: "slow", UUID: "u2", Layout: "linear", Size: size("1861Gi"), Free: size("1861Gi")},
	}
	condition := func(what string, is metav1.ConditionStatus, message string) metav1.Condition {
		return metav1.Condition{Type: what, Status: is, Reason: "Tested", Message: message, LastTransitionTime: metav1.Now()}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1.NodeStorage{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "NodeStorage"},
		ObjectMeta: metav1.ObjectMeta{Name: node, ResourceVersion: resourceVersion},
		Status: v1.NodeStorageStatus{
			ObservedTime: metav1.Now(), Summary: v1.Summarize(pools), Pools: pools, Volumes: 3, OrphanCount: 1,
			Orphans: []v1.Orphan{{Pool: "fast", Name: "pvc-1", Size: size("1Gi")}},
			Conditions: []metav1.Condition{
				condition(v1.ConditionReady, metav1.ConditionTrue, "the tools are all there"),
				condition(v1.ConditionDiskPressure, metav1.ConditionFalse, ""),
				condition(v1.ConditionShortfall, metav1.ConditionFalse, ""),
			},
		},
	})
	require.NoError(t, err)
	return &unstructured.Unstructured{Object: object}
}
