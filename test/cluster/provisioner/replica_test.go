//go:build cluster

package provisioner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// datasetClass is the shipped class of replicas.
const datasetClass = "flexlvm-dataset"

// byHand is a volume that no VolumeManager of the test names, so that its claims are created by the
// test and not by the controller.
const byHand = "by-hand"

// manager creates a VolumeManager, and returns its UID.
func (s *space) manager(name string) types.UID {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	require.NoError(s.t, err)
	managers := client.Resource(flexlvmv1.GroupVersion.WithResource(replica.OwnerPlural)).Namespace(s.name)
	made, err := managers.Create(s.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "flexlvm.io/v1", "kind": replica.OwnerKind, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"volumes": []any{map[string]any{
			"id": "images", "replicas": int64(1), "sourceType": "S3", "accessMode": "ReadWriteOnce", "capacity": "1Gi",
			"labels":  map[string]any{"k": "v"},
			"options": map[string]any{"awsCredentialsSecretName": "none", "sourceURL": "s3://none/none/"},
		}}},
	}}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		require.NoError(s.t, managers.Delete(context.WithoutCancel(s.t.Context()), name, metav1.DeleteOptions{}))
	})
	return made.GetUID()
}

// replicaOf creates a claim as the controller of datasets does, for a VolumeManager that may not exist.
func (s *space) replicaOf(owner string, uid types.UID, name string, change func(*corev1.PersistentVolumeClaim)) {
	s.t.Helper()
	s.claim(name, func(c *corev1.PersistentVolumeClaim) {
		yes := true
		c.Labels = map[string]string{replica.LabelDataset: replica.Hash(s.name, string(uid), byHand)}
		c.Annotations = map[string]string{replica.AnnotationVolumeID: byHand, replica.AnnotationEviction: "LRU"}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "flexlvm.io/v1", Kind: replica.OwnerKind, Name: owner, UID: uid, Controller: &yes}}
		c.Spec.StorageClassName = ptr(datasetClass)
		if change != nil {
			change(c)
		}
	})
}

// testReplicas: claims of replicas are served for an existing VolumeManager, on nodes that have no
// replica of the dataset yet. All others are refused.
func (b *bed) testReplicas(t *testing.T) {
	s := b.namespace(t, "replicas")
	uid := s.manager("vm")
	s.replicaOf("vm", uid, "first", nil)
	s.pod("first", "sim-1")
	first := s.volumeOf("first")
	hash := replica.Hash(s.name, string(uid), byHand)
	require.Equal(t, map[string]string{pv.LabelNode: "sim-1", replica.LabelDataset: hash, replica.LabelOwner: string(uid)}, first.Labels)
	require.Equal(t, "ds-"+hash, first.Spec.FlexVolume.Options[volume.OptionVolume])
	require.Equal(t, "dataset", first.Spec.FlexVolume.Options[volume.OptionKind])
	require.Equal(t, replica.ReadersClaim("vm", byHand), first.Annotations[replica.AnnotationReaders])
	require.Equal(t, "LRU", first.Annotations[replica.AnnotationEviction])
	require.Equal(t, "immediate", first.Annotations[pv.AnnotationReclaim])

	// The second replica is refused on the first one's node, and placed on another.
	s.replicaOf("vm", uid, "second", nil)
	s.pod("second", "sim-1")
	s.event(s.name, "PersistentVolumeClaim", "second", `node "sim-1" has a replica of this dataset already`)
	s.deletePod("second")
	s.pod("second", "sim-2")
	require.Equal(t, "sim-2", s.volumeOf("second").Labels[pv.LabelNode])
	require.Equal(t, "ds-"+hash, s.volumeOf("second").Spec.FlexVolume.Options[volume.OptionVolume], "one name on all nodes")

	// Claims whose owner does not exist are not tested here: Kubernetes may garbage-collect them before
	// they are refused.
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		says   string
	}{
		"unowned":   {func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil }, "no VolumeManager controls it"},
		"elsewhere": {func(c *corev1.PersistentVolumeClaim) { c.Annotations[replica.AnnotationVolumeID] = "images" }, `is not that of volume "images"`},
		"ordinary":  {func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("flexlvm") }, "is not for replicas of datasets"},
		"private":   {func(c *corev1.PersistentVolumeClaim) { c.Labels, c.OwnerReferences = nil, nil }, "is for replicas of datasets"},
	} {
		s.replicaOf("vm", uid, name, c.change)
		s.pod(name, "")
		s.event(s.name, "PersistentVolumeClaim", name, "ProvisioningFailed", c.says)
	}
}

// deletePod deletes a pod without a grace period, because there is no kubelet here.
func (s *space) deletePod(name string) {
	s.t.Helper()
	require.NoError(s.t, s.client.CoreV1().Pods(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	await.Until(s.t, longest, func() string {
		_, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
		return await.Missing(err != nil, "pod %s is still there", name)
	})
}

// testRoomOfReplicas: the space of replicas is offered to claims in the published capacities, but not
// to other replicas.
func (b *bed) testRoomOfReplicas(t *testing.T) {
	s := b.namespace(t, "room-of-replicas")
	t.Cleanup(func() { b.reportRoomy(t) })
	b.report(t, "sim-2", nil)
	b.report(t, longNode, nil)
	storage, err := b.storage.NodeStorage(t.Context(), "sim-1")
	require.NoError(t, err)
	size := func(n int64) resource.Quantity { return *resource.NewQuantity(n*int64(volume.GiB), resource.BinarySI) }
	storage.Status.Pools = []flexlvmv1.Pool{{
		Name: "flexlvm", UUID: groupUUID, Layout: "linear", Size: size(100), Free: size(2), ExtentSize: resource.MustParse("4Mi"),
		Allocatable: size(20), Reclaimable: size(18), ReclaimableReplicas: size(16),
	}}
	_, err = b.storage.UpdateNodeStorageStatus(t.Context(), storage)
	require.NoError(t, err)
	b.offered(t, "flexlvm", "sim-1", within(20*volume.GiB))
	b.offered(t, datasetClass, "sim-1", within(4*volume.GiB))

	uid := s.manager("vm")
	s.replicaOf("vm", uid, "replica", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = requests("6Gi") })
	s.pod("replica", "")
	s.event(s.name, "PersistentVolumeClaim", "replica", "NoRoom", "6442450944 bytes (6 GiB) are asked for")
	s.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = requests("6Gi") })
	s.pod("data", "")
	require.Equal(t, "sim-1", s.volumeOf("data").Labels[pv.LabelNode])
	b.offered(t, datasetClass, "sim-1", 0)
}

// testDaemonReplicas: a daemon can request that its node's replicas be evicted, step by step, and can
// change nothing else.
func (b *bed) testDaemonReplicas(t *testing.T) {
	ctx := t.Context()
	create := func(name string, change func(*corev1.PersistentVolume)) {
		object := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{pv.LabelNode: "sim-1", replica.LabelDataset: "0123456789abcdef"},
				Annotations: map[string]string{replica.AnnotationEviction: "LRU", replica.AnnotationComplete: replica.Complete, "other": "x"},
			},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: requests("1Gi").Requests, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
					Driver: pv.Driver, Options: map[string]string{volume.OptionKind: "dataset", volume.OptionVolume: "ds-0123456789abcdef"},
				}},
			},
		}
		if change != nil {
			change(object)
		}
		_, err := b.client.CoreV1().PersistentVolumes().Create(ctx, object, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, b.client.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}))
		})
	}
	const (
		evict     = `{"metadata":{"annotations":{"flexlvm.io/evict":"2026-11-21T12:00:00Z"}}}`
		evictable = `{"metadata":{"annotations":{"flexlvm.io/evictable":"2026-11-21T12:00:00Z"}}}`
		withdraw  = `{"metadata":{"annotations":{"flexlvm.io/evict":null,"flexlvm.io/unlabelled":null,"flexlvm.io/evictable":null}}}`
		unlabel   = `{"metadata":{"annotations":{"flexlvm.io/unlabelled":"2026-11-21T12:00:00Z"}}}`
	)
	create("replica", nil)
	daemon, admin := b.volumesOf(t, b.daemonOn(t, "sim-1")), persistentVolumes{b.client}
	require.ErrorContains(t, b.volumesOf(t, b.daemonOn(t, "sim-2")).patch(ctx, "replica", evict), "of its own node")
	for _, patch := range []string{
		`{"metadata":{"annotations":{"other":"y"}}}`, `{"metadata":{"annotations":{"other":null}}}`, `{"metadata":{"annotations":{"new":"x"}}}`,
		`{"metadata":{"annotations":{"flexlvm.io/complete":null}}}`, `{"metadata":{"annotations":{"flexlvm.io/eviction-policy":"Never"}}}`,
		`{"metadata":{"labels":{"flexlvm.io/dataset":null}}}`, `{"metadata":{"annotations":{"flexlvm.io/evict":"x","other":"y"}}}`,
	} {
		require.ErrorContains(t, daemon.patch(ctx, "replica", patch), "may only change the finalizer", patch)
	}
	const steps = "may only request the eviction of complete replicas with eviction policy LRU"
	require.ErrorContains(t, daemon.patch(ctx, "replica", unlabel), steps, "that is the controller's to say")
	require.ErrorContains(t, daemon.patch(ctx, "replica", evictable), steps, "it was not asked for")
	require.NoError(t, daemon.patch(ctx, "replica", evict))
	require.ErrorContains(t, daemon.patch(ctx, "replica", evictable), steps, "it is not unlabelled")
	require.NoError(t, admin.patch(ctx, "replica", unlabel))
	require.NoError(t, daemon.patch(ctx, "replica", evictable))
	require.NoError(t, daemon.patch(ctx, "replica", withdraw))
	require.NoError(t, daemon.patch(ctx, "replica", evict), "again")

	create("never", func(o *corev1.PersistentVolume) { o.Annotations[replica.AnnotationEviction] = "Never" })
	create("incomplete", func(o *corev1.PersistentVolume) { delete(o.Annotations, replica.AnnotationComplete) })
	for _, name := range []string{"never", "incomplete"} {
		require.ErrorContains(t, daemon.patch(ctx, name, evict), steps)
		require.NoError(t, admin.patch(ctx, name, evict))
		require.NoError(t, daemon.patch(ctx, name, withdraw), "what should not be asked for can be taken back")
	}
	create("snap-1", func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume = nil
		o.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "flexlvm.io", VolumeHandle: "flexlvm/snap-1", VolumeAttributes: map[string]string{"kind": "snapshot"}}
	})
	says := func(key, value string) string {
		return `{"metadata":{"annotations":{"flexlvm.io/` + key + `":` + value + `}}}`
	}
	require.NoError(t, daemon.patch(ctx, "snap-1", says("charged-bytes", `"8388608"`)), "its store takes more")
	require.NoError(t, daemon.patch(ctx, "snap-1", says("snapshot-taken", `"2026-11-21T12:00:00Z"`)))
	for key, value := range map[string]string{"charged-bytes": `"1"`, "snapshot-taken": "null", "snapshot-size": `"1"`} {
		require.ErrorContains(t, daemon.patch(ctx, "snap-1", says(key, value)), "may only change the finalizer", "it is taken once")
	}
	require.NoError(t, daemon.patch(ctx, "snap-1", says("snapshot-problem", `"it has overflowed"`)))
	create("charged", func(o *corev1.PersistentVolume) { o.Annotations[pv.AnnotationCharged] = "1000" })
	require.NoError(t, daemon.patch(ctx, "charged", says("charged-bytes", `"20000"`)), "its volume takes more")
	for _, other := range []string{`"3000"`, `"much"`, `"-1"`, `"99999999999999999999"`, `""`, "null"} {
		require.ErrorContains(t, daemon.patch(ctx, "charged", says("charged-bytes", other)), "may only change the finalizer", other)
	}
	require.ErrorContains(t, daemon.patch(ctx, "replica", says("charged-bytes", `"1"`)), "may only change the finalizer", "it is charged by its size")
	const marked, brought = `{"metadata":{"annotations":{"flexlvm.io/undelete":"x"}}}`, `{"metadata":{"annotations":{"flexlvm.io/undelete":null}}}`
	for _, name := range []string{"replica", "brought-back"} {
		if name != "replica" {
			create(name, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionKind] = "claim" })
		}
		require.ErrorContains(t, daemon.patch(ctx, name, marked), "may only change the finalizer", "only who may create PersistentVolumes asks for a volume")
		require.NoError(t, admin.patch(ctx, name, marked))
		require.ErrorContains(t, daemon.patch(ctx, name, `{"metadata":{"annotations":{"flexlvm.io/undelete":"y"}}}`), "may only change the finalizer")
		require.NoError(t, daemon.patch(ctx, name, brought), "it has brought the volume back")
	}

	create("a-claims", func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionKind] = "claim" })
	create("unlabelled", func(o *corev1.PersistentVolume) { delete(o.Labels, replica.LabelDataset) })
	for _, name := range []string{"a-claims", "unlabelled"} {
		require.ErrorContains(t, daemon.patch(ctx, name, evict), "may only change the finalizer", name)
	}
}
