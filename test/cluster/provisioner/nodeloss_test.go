//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// testNodeLoss deletes a Node whose name is too long for a label, and checks its claims. It comes last,
// because that Node does not come back.
func (b *bed) testNodeLoss(t *testing.T) {
	t.Run("rights", b.testNodeLossRights)
	b.flags = []string{"--node-loss-grace=20s"}
	b.run(t, 8091)
	b.ready(t, 8091)
	b.reportRoomy(t)
	t.Run("node deleted", b.testNodeDeleted)
}

func (b *bed) testNodeDeleted(t *testing.T) {
	s := b.namespace(t, "lost")
	for name, policy := range map[string]corev1.PersistentVolumeReclaimPolicy{
		"released": corev1.PersistentVolumeReclaimDelete, "retained": corev1.PersistentVolumeReclaimRetain,
	} {
		s.class(name, func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"onNodeLoss": "release"}
			c.ReclaimPolicy = &policy
		})
	}
	b.offered(t, "released", longNode, within(roomy))
	s.statefulSet("web", "released", longNode)
	web := s.volumeOf("data-web-0")
	require.Equal(t, pv.NodeLabelValue(longNode), web.Labels[pv.LabelNode])
	onNode := func(claim, class, node string) *corev1.PersistentVolume {
		s.claim(claim, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
		s.pod(claim, node)
		return s.volumeOf(claim)
	}
	retained := onNode("retained", "retained", longNode)
	kept := onNode("kept", "flexlvm", longNode)
	taken := s.snapshotOf(kept)
	// A node that is drained and shut down is not lost.
	drained := onNode("drained", "released", "sim-1")
	s.placed("drained", "sim-1")
	b.testKeptMeanwhile(t, drained.Name)
	b.kubectl(t, "drain", "sim-1", "--ignore-daemonsets", "--force", "--grace-period=0")
	b.conditionReady(t, "sim-1", corev1.ConditionUnknown)

	gone := time.Now()
	require.NoError(t, b.client.CoreV1().Nodes().Delete(t.Context(), longNode, metav1.DeleteOptions{}))
	require.Equal(t, "0", b.metric(t, 8091, "flexlvm_provisioner_lost_nodes"))
	s.podsGoFrom(longNode)

	// release: the StatefulSet starts from scratch on another node.
	s.event(s.name, "PersistentVolumeClaim", "data-web-0", "ClaimReleased", `(hostname "host-of-sim-3") is gone from the cluster`, "onNodeLoss: release")
	s.event(s.name, "Pod", "web-0", "ClaimReleased", "claim data-web-0: node")
	released := time.Now()
	require.Greater(t, released.Sub(gone), 20*time.Second, "the grace period")
	anew := s.volumeNot("data-web-0", web)
	require.Equal(t, "sim-2", anew.Labels[pv.LabelNode])
	s.gone(web.Name)
	s.event("default", "PersistentVolume", web.Name, "VolumeGivenUp", "where nobody is left to take the volume back")
	t.Logf("claim released %.1f s after its node was deleted; its successor was bound %.1f s later", released.Sub(gone).Seconds(), time.Since(released).Seconds())

	// Retain: the claim is deleted, and the PersistentVolume is left to a person.
	s.event(s.name, "PersistentVolumeClaim", "retained", "ClaimReleased")
	s.phase(retained.Name, corev1.VolumeReleased)

	// keep: everything stays, and describe says what to do.
	s.event(s.name, "PersistentVolumeClaim", "kept", "NodeLost")
	require.Contains(t, b.kubectl(t, "describe", "pvc", "-n", s.name, "kept"), "kubectl delete pvc -n lost kept --wait=false")
	require.Contains(t, b.kubectl(t, "describe", "pv", kept.Name), "The claim stays, as its class says (onNodeLoss: keep)")
	s.phase(kept.Name, corev1.VolumeBound)
	require.Equal(t, "1", b.metric(t, 8091, "flexlvm_provisioner_lost_nodes"))
	require.Equal(t, "2", b.metric(t, 8091, "flexlvm_provisioner_node_loss_released_claims_total"))

	// The commands of the event's message work.
	b.kubectl(t, "delete", "pvc", "-n", s.name, "kept", "--wait=false")
	s.gone(kept.Name)
	s.phase(retained.Name, corev1.VolumeReleased)
	b.kubectl(t, "delete", "pv", retained.Name, "--wait=false")
	s.gone(retained.Name)

	// A snapshot stays until it is deleted, and does not count meanwhile.
	await.Until(t, longest, func() string {
		lost := b.metric(t, 8091, "flexlvm_provisioner_lost_nodes")
		return await.Missing(lost == "0", "%s lost nodes", lost)
	})
	s.phase(taken.Name, corev1.VolumeAvailable)
	b.kubectl(t, "delete", "pv", taken.Name, "--wait=false")
	s.gone(taken.Name)

	// The drained node comes back, and its claim's pod runs nowhere else.
	s.phase(drained.Name, corev1.VolumeBound)
	require.NotContains(t, strings.Join(s.events(s.name, "PersistentVolumeClaim", "drained"), "\n"), "gone from the cluster")
	s.pod("drained", "")
	s.event(s.name, "Pod", "drained", "FailedScheduling")
	b.conditionReady(t, "sim-1", corev1.ConditionTrue)
	b.kubectl(t, "uncordon", "sim-1")
	s.placed("drained", "sim-1")
}

// testKeptMeanwhile runs the commands of docs/node-loss.md for a node that gets a new system.
func (b *bed) testKeptMeanwhile(t *testing.T, volume string) {
	const listed = `jsonpath={range .items[?(@.metadata.annotations.flexlvm\.io/on-node-loss=="release")]}{.metadata.name}{"\n"}{end}`
	list := func() string { return b.kubectl(t, "get", "pv", "-l", "flexlvm.io/node=sim-1", "-o", listed) }
	page, err := os.ReadFile("../../../docs/node-loss.md")
	require.NoError(t, err)
	require.Contains(t, strings.ReplaceAll(string(page), "jsonpath='", "jsonpath="), listed)
	require.Contains(t, list(), volume+"\n")
	b.kubectl(t, "annotate", "pv", volume, "--overwrite", "flexlvm.io/on-node-loss=keep")
	require.NotContains(t, list(), volume)
	b.kubectl(t, "annotate", "pv", volume, "--overwrite", "flexlvm.io/on-node-loss=release")
	require.Contains(t, list(), volume+"\n")
}

// snapshotOf creates the PersistentVolume of a snapshot of a volume, as CSI's calls do.
func (s *space) snapshotOf(of *corev1.PersistentVolume) *corev1.PersistentVolume {
	s.t.Helper()
	source := of.DeepCopy()
	var err error
	source.Spec.PersistentVolumeSource, err = persistentvolume.SourceFor(of, pv.CSI, of.Name)
	require.NoError(s.t, err)
	object, _, err := persistentvolume.Snapshot(source, "snap-of-lost-node", 0)
	require.NoError(s.t, err)
	object, err = s.client.CoreV1().PersistentVolumes().Create(s.t.Context(), object, metav1.CreateOptions{})
	require.NoError(s.t, err)
	s.phase(object.Name, corev1.VolumeAvailable)
	return object
}

// placed waits until the scheduler has placed a pod, and checks that it is on the node.
func (s *space) placed(pod, node string) {
	s.t.Helper()
	on := ""
	await.Until(s.t, longest, func() string {
		p, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), pod, metav1.GetOptions{})
		require.NoError(s.t, err)
		on = p.Spec.NodeName
		return await.Missing(on != "", "pod %s waits", pod)
	})
	require.Equal(s.t, node, on)
}

// statefulSet creates a StatefulSet of one replica that prefers node.
func (s *space) statefulSet(name, class, node string) {
	s.t.Helper()
	labels := map[string]string{"app": name}
	_, err := s.client.AppsV1().StatefulSets(s.name).Create(s.t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
							Weight: 100,
							Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
								{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
							}},
						}},
					}},
				},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class,
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:        requests("64Mi"),
				},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		err := s.client.AppsV1().StatefulSets(s.name).Delete(context.WithoutCancel(s.t.Context()), name, metav1.DeleteOptions{})
		require.True(s.t, err == nil || apierrors.IsNotFound(err), err)
	})
}

// podsGoFrom deletes a node's pods, as kube-controller-manager does about 40 s after a Node was
// deleted.
func (s *space) podsGoFrom(node string) {
	s.t.Helper()
	err := s.client.CoreV1().Pods(s.name).DeleteCollection(s.t.Context(),
		metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	require.NoError(s.t, err)
}

// volumeNot waits until a claim is bound to another volume than before.
func (s *space) volumeNot(claim string, before *corev1.PersistentVolume) *corev1.PersistentVolume {
	s.t.Helper()
	var volume *corev1.PersistentVolume
	await.Until(s.t, longest, func() string {
		volume = nil
		for _, v := range s.volumes(s.t.Context()) {
			if v.Spec.ClaimRef.Name == claim && v.UID != before.UID && v.Status.Phase == corev1.VolumeBound {
				volume = &v
			}
		}
		return await.Missing(volume != nil, "claim %s has no new volume; events: %v", claim, s.events(s.name, "PersistentVolumeClaim", claim))
	})
	return volume
}

func (s *space) gone(volume string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		v, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), volume, metav1.GetOptions{})
		return await.Missing(apierrors.IsNotFound(err), "%s is %s with finalizers %q", volume, v.Status.Phase, v.Finalizers)
	})
}

// phase waits until a volume is in a phase, and checks that it still has the node's finalizer and is
// not being deleted.
func (s *space) phase(volume string, phase corev1.PersistentVolumePhase) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		v, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), volume, metav1.GetOptions{})
		require.NoError(s.t, err)
		require.Contains(s.t, v.Finalizers, pv.Finalizer)
		require.Nil(s.t, v.DeletionTimestamp)
		return await.Missing(v.Status.Phase == phase, "%s is %s", volume, v.Status.Phase)
	})
}

// conditionReady sets the Ready condition of a simulated node, as its kubelet does or, if that is
// silent, the node lifecycle controller.
func (b *bed) conditionReady(t *testing.T, name string, status corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Simulated"}]}}`, status)
	_, err := b.client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// testNodeLossRights: the provisioner's rights to delete objects allow only what it does with them.
func (b *bed) testNodeLossRights(t *testing.T) {
	ctx := t.Context()
	config := b.as(account)
	volumes := b.volumesOf(t, config)
	// The provisioner reads from its cache, and has no right to get.
	letGo := func(name string) error {
		v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{pv.Finalizer, "kubernetes.io/pv-protection"}, v.Finalizers)
		return volumes.patch(ctx, name, fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"finalizers":["kubernetes.io/pv-protection"]}}`, v.ResourceVersion))
	}

	b.persistentVolume(t, "released", "sim-1", pv.Driver, corev1.VolumeReleased)
	b.refusedSoon(t, "may only change the finalizer", func(dryRun []string) error {
		_, err := volumes.CoreV1().PersistentVolumes().Patch(ctx, "released", types.MergePatchType, []byte(`{"spec":{"claimRef":{"name":"mine"}}}`), metav1.PatchOptions{DryRun: dryRun})
		return err
	})
	require.ErrorContains(t, volumes.patch(ctx, "released", `{"metadata":{"annotations":{"flexlvm.io/wipe":"none"}}}`), "may only change the finalizer")
	require.ErrorContains(t, volumes.patch(ctx, "released", `{"metadata":{"finalizers":null}}`), "may only remove the finalizer")
	require.NoError(t, letGo("released"))
	require.NoError(t, volumes.remove(ctx, "released"))

	b.persistentVolume(t, "wanted", "sim-1", pv.Driver, corev1.VolumeAvailable)
	require.ErrorContains(t, letGo("wanted"), "only where the PersistentVolume is released or deleted and no claim is bound to it")
	require.ErrorContains(t, volumes.remove(ctx, "wanted"), "may only delete PersistentVolumes that are released")
	b.persistentVolume(t, "foreign", "sim-1", "example.org/other", corev1.VolumeReleased)
	require.ErrorContains(t, volumes.remove(ctx, "foreign"), "of the driver flexlvm.io/flexlvm")
	require.ErrorContains(t, letGo("foreign"), "of the driver flexlvm.io/flexlvm")

	b.testClaimRights(t, config)
}

func (b *bed) testClaimRights(t *testing.T, config *rest.Config) {
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	s := b.namespace(t, "rights")
	s.claim("foreign", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("another") })
	s.claim("ours", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr("another")
		c.Annotations = map[string]string{
			"volume.kubernetes.io/storage-provisioner": "flexlvm.io", "volume.kubernetes.io/selected-node": "sim-1", "theirs": "1",
		}
	})
	claims := client.CoreV1().PersistentVolumeClaims(s.name)
	b.refusedSoon(t, "may only delete claims that it has provisioned", func(dryRun []string) error {
		return claims.Delete(t.Context(), "foreign", metav1.DeleteOptions{DryRun: dryRun})
	})
	update := func(name string, change func(*corev1.PersistentVolumeClaim)) error {
		claim, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		change(claim)
		_, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{})
		return err
	}
	const refused = "may only remove the annotation volume.kubernetes.io/selected-node"
	require.ErrorContains(t, update("foreign", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "flexlvm.io"}
	}), refused)
	require.ErrorContains(t, update("foreign", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "theirs" }), refused)
	require.ErrorContains(t, update("ours", func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, "theirs") }), refused)
	require.ErrorContains(t, update("ours", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations["volume.kubernetes.io/selected-node"] = "sim-2"
	}), refused)
	require.NoError(t, update("ours", func(c *corev1.PersistentVolumeClaim) {
		delete(c.Annotations, "volume.kubernetes.io/selected-node")
	}))
	require.NoError(t, claims.Delete(t.Context(), "ours", metav1.DeleteOptions{}))
}
