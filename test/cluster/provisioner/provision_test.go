//go:build cluster

package provisioner_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// TestProvisioner runs its parts on one control plane, and TestProvisionerDisturbed on another.
func TestProvisioner(t *testing.T) {
	t.Parallel()
	b := start(t)
	t.Run("manifests", b.testManifests)
	t.Run("inline use is refused", b.testInline)
	t.Run("with one provisioner", func(t *testing.T) {
		b.reportRoomy(t)
		b.run(t, 8081)
		b.ready(t, 8081)
		t.Run("volume", b.testVolume)
		t.Run("sizes", b.testSizes)
		t.Run("refusals", b.testRefusals)
		t.Run("class mended", b.testClassMended)
		t.Run("node without hostname", b.testNodeWithoutHostname)
		t.Run("node gone", b.testNodeGone)
		t.Run("released", b.testReleased)
		t.Run("filter", b.testFilter)
		t.Run("score", b.testScore)
		t.Run("room for ten", b.testRoomForTen)
		t.Run("whole pods", b.testWholePods)
		t.Run("bound at once", b.testBoundAtOnce)
		t.Run("copies", b.testCopies)
		t.Run("replicas", b.testReplicas)
		t.Run("room of replicas", b.testRoomOfReplicas)
		t.Run("capacities", b.testCapacities)
		t.Run("plugin", b.testPlugin)
		t.Run("50 at once", b.testMany)
		t.Run("examples", b.testExamples)
		t.Run("from others", b.testFromOthers)
		t.Run("deleted at every moment", b.testDeletedAtEveryMoment)
	})
	b.testNothingWasForbidden(t)
}

// TestProvisionerDisturbed kills provisioners and the API server, and deletes a node.
func TestProvisionerDisturbed(t *testing.T) {
	t.Parallel()
	b := start(t)
	t.Run("growth", func(t *testing.T) {
		b.reportRoomy(t)
		t.Run("policies", b.testGrowthPolicies)
		t.Run("states", b.testGrowth)
		t.Run("too large already", b.testGrowthTooLarge)
		t.Run("killed at each step", b.testGrowthKilled)
	})
	t.Run("classes of attributes", b.testAttributesClasses)
	t.Run("faults", func(t *testing.T) {
		t.Run("first choice filled meanwhile", b.testFirstChoiceFilled)
		t.Run("no room and killed again and again", b.testNoRoomAndKilled)
		t.Run("leader killed", b.testLeaderKilled)
		t.Run("leader told to end", b.testLeaderEnds)
		t.Run("killed again and again", b.testKilledAgainAndAgain)
		t.Run("API server away", b.testServerAway)
	})
	t.Run("NFS", b.testNFS)
	t.Run("node loss", b.testNodeLoss)
	b.testNothingWasForbidden(t)
}

func (b *bed) testVolume(t *testing.T) {
	s := b.namespace(t, "volume")
	s.class("retained", func(c *storagev1.StorageClass) {
		c.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain)
		c.Parameters = map[string]string{"volumeGroup": "fast", "inodes": "5000", "wipe": "zero", "reclaim": "immediate", "onNodeLoss": "release"}
	})
	s.claim("data", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr("retained")
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
		c.Spec.Resources = requests("1Gi")
	})
	s.pod("data", longNode)
	got := s.volumeOf("data")

	cluster, err := b.client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, &corev1.FlexPersistentVolumeSource{
		Driver: "flexlvm.io/flexlvm", FSType: "xfs",
		Options: map[string]string{
			"volumeGroup": "fast", "size": "1073741824", "layout": "linear", "inodes": "5000",
			"clusterUID": string(cluster.UID), "kind": "claim", "volumeGroupUUID": groupUUID,
		},
	}, got.Spec.FlexVolume)
	require.Equal(t, "retained", got.Spec.StorageClassName)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, got.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}, got.Spec.AccessModes)
	require.Equal(t, []string{hostname(longNode)}, got.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
	require.Contains(t, got.Finalizers, "flexlvm.io/volume")
	require.Greater(t, len(longNode), validation.LabelValueMaxLength)
	require.Equal(t, pv.NodeLabelValue(longNode), got.Labels["flexlvm.io/node"])
	require.Equal(t, strconv.FormatInt(int64(volume.XFSDeviceSize(volume.GiB, 5000)), 10), got.Annotations["flexlvm.io/charged-bytes"])
	require.Equal(t, "immediate", got.Annotations["flexlvm.io/reclaim"])
	require.Equal(t, "zero", got.Annotations["flexlvm.io/wipe"])
	require.Equal(t, "release", got.Annotations["flexlvm.io/on-node-loss"])
	s.event(s.name, "PersistentVolumeClaim", "data", "ProvisioningSucceeded")
}

func (b *bed) testSizes(t *testing.T) {
	s := b.namespace(t, "sizes")
	sizes := map[string]string{"1": "4Ki", "64Mi": "64Mi", "300Mi": "300Mi", "4097": "8Ki", "1G": "976564Ki"}
	for asked := range sizes {
		name := "s" + strings.ToLower(asked)
		s.claim(name, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = requests(asked) })
		s.pod(name, "")
	}
	for asked, want := range sizes {
		name := "s" + strings.ToLower(asked)
		capacity := s.volumeOf(name).Spec.Capacity[corev1.ResourceStorage]
		require.Equal(t, want, capacity.String())
		claim, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		capacity = claim.Status.Capacity[corev1.ResourceStorage]
		require.Equal(t, want, capacity.String(), "what the user sees")
	}
}

func (b *bed) testMany(t *testing.T) {
	s := b.namespace(t, "many")
	s.many("c", 50)
	began := time.Now()
	await.Until(t, longest, func() string { return s.unbound(t.Context()) })
	t.Logf("50 claims and pods: bound %.1f s after the last was made", time.Since(began).Seconds())
	s.oneEach(50)
}

// testReleased: the provisioner never deletes a released PersistentVolume, nor reports that it did.
func (b *bed) testReleased(t *testing.T) {
	s := b.namespace(t, "released")
	for _, claim := range []string{"data", "later"} {
		s.claim(claim, nil)
		s.pod(claim, "sim-1")
	}
	name, later := s.volumeOf("data").Name, s.volumeOf("later").Name
	s.deletePods(t.Context())
	require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(s.name).Delete(t.Context(), "data", metav1.DeleteOptions{}))
	s.event("default", "PersistentVolume", name, "WaitingForNode", `of node "host-of-sim-1" releases volume "`+name+`"`)

	volumes := b.client.CoreV1().PersistentVolumes()
	released, err := volumes.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.VolumeReleased, released.Status.Phase)
	require.Nil(t, released.DeletionTimestamp)
	require.Contains(t, released.Finalizers, "flexlvm.io/volume")

	// A person deletes the object, which waits for its node all the same.
	require.NoError(t, volumes.Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(s.name).Delete(t.Context(), "later", metav1.DeleteOptions{}))
	s.event("default", "PersistentVolume", later, "WaitingForNode") // events before it were processed
	left, err := volumes.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, left.DeletionTimestamp)
	require.Contains(t, left.Finalizers, "flexlvm.io/volume")
	b.testClaimRemoved(t, later)
	require.NoError(t, volumes.Delete(t.Context(), later, metav1.DeleteOptions{}))

	// The node does this or, if there is none, a person.
	for _, waits := range []string{name, later} {
		b.kubectl(t, "patch", "pv", waits, "--type=json", "-p", `[{"op":"remove","path":"/metadata/finalizers"}]`)
	}
	await.Until(t, longest, func() string { return await.Missing(len(s.volumes(t.Context())) == 0, "the volume is still there") })
}

// testClaimRemoved runs the command of docs/undelete.md that removes the deleted claim's reference. It also works
// where the reference has no resourceVersion, as after a move to the other driver, or is removed already.
func (b *bed) testClaimRemoved(t *testing.T, volume string) {
	const patch = `{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}`
	page, err := os.ReadFile("../../../docs/undelete.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "kubectl patch pv NAME --type=merge -p '"+patch+"'\n")
	for range 2 {
		b.kubectl(t, "patch", "pv", volume, "--type=merge", "-p", patch)
	}
	b.kubectl(t, "wait", "pv/"+volume, "--for=jsonpath={.status.phase}=Available", "--timeout=4m")
}

// testDeletedAtEveryMoment deletes claims while they are being provisioned. In the end there are no
// claims, and only released volumes.
func (b *bed) testDeletedAtEveryMoment(t *testing.T) {
	s := b.namespace(t, "deleted")
	const n = 40
	for i := range n {
		name := fmt.Sprintf("c-%d", i)
		s.claim(name, nil)
		s.pod(name, "sim-2")
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		require.NoError(t, b.client.CoreV1().Pods(s.name).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
		require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(s.name).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	await.Until(t, longest, func() string {
		claims, err := b.client.CoreV1().PersistentVolumeClaims(s.name).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		volumes := s.volumes(t.Context())
		for _, v := range volumes {
			if v.Status.Phase != corev1.VolumeReleased {
				return fmt.Sprintf("volume %s is %s", v.Name, v.Status.Phase)
			}
		}
		t.Logf("of %d claims %d had a volume by then", n, len(volumes))
		return await.Missing(len(claims.Items) == 0, "%d claims are left", len(claims.Items))
	})
}
