//go:build cluster

package provisioner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// thinRooms makes the first two nodes report that many GiB for their group and for a thin pool in it.
func (b *bed) thinRooms(t *testing.T, sim1, sim2 volume.Bytes) {
	t.Helper()
	t.Cleanup(func() { b.reportRoomy(t) })
	for node, room := range map[string]volume.Bytes{"sim-1": sim1 * volume.GiB, "sim-2": sim2 * volume.GiB} {
		b.report(t, node, map[string]volume.Bytes{"flexlvm": room, "flexlvm/thinpool": room})
	}
	b.report(t, longNode, nil)
}

// copyOf creates a claim of a class that clones another claim.
func (s *space) copyOf(source, name, class, size string) {
	s.t.Helper()
	s.claim(name, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.Resources = &class, requests(size)
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
	})
}

// requireCopy waits until a claim is bound to a clone of a volume, on its node.
func (s *space) requireCopy(claim string, source *corev1.PersistentVolume) {
	s.t.Helper()
	got := s.volumeOf(claim)
	require.Equal(s.t, source.Name, got.Spec.FlexVolume.Options["cloneOf"])
	require.Equal(s.t, "thin", got.Spec.FlexVolume.Options["layout"])
	require.Equal(s.t, groupUUID, got.Spec.FlexVolume.Options["volumeGroupUUID"])
	require.Equal(s.t, source.Labels, got.Labels)
	require.Equal(s.t, source.Spec.NodeAffinity, got.Spec.NodeAffinity)
}

// testCopies: a clone is bound on its source's node, whatever the scheduler prefers, and its pod
// follows.
func (b *bed) testCopies(t *testing.T) {
	s := b.namespace(t, "copies")
	thinly := func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"layout": "thin", "thinPool": "thinpool"}
	}
	s.class("thin", thinly)
	s.class("thin-at-once", func(c *storagev1.StorageClass) {
		thinly(c)
		c.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
	})
	b.thinRooms(t, 100, 1000)
	b.offered(t, "thin", "sim-1", within(100*volume.GiB))
	b.offered(t, "thin", "sim-2", within(1000*volume.GiB))

	// Claims whose source does not exist yet wait, and are served when it does.
	s.copyOf("source", "early", "thin-at-once", "1Gi")
	s.event(s.name, "PersistentVolumeClaim", "early", "ProvisioningFailed", `dataSource "source": namespace "copies" has no such claim; create it`)
	s.claim("source", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.Resources = ptr("thin"), requests("1Gi")
	})
	s.podWith("source", "sim-2", "source")
	require.Equal(t, "sim-2", s.nodeOf("source"))
	source := s.volumeOf("source")
	require.NotContains(t, source.Spec.FlexVolume.Options, "cloneOf")
	s.requireCopy("early", source)

	// From now on the other node is the better one.
	b.thinRooms(t, 1000, 100)
	b.offered(t, "thin", "sim-1", within(1000*volume.GiB))
	s.copyOf("source", "copy", "thin", "2Gi")
	s.podWith("copy", "", "copy")
	s.requireCopy("copy", source)
	require.Equal(t, "sim-2", s.nodeOf("copy"), "the pod follows its volume")
	t.Logf("what the scheduler said of the pod: %q", s.events(s.name, "Pod", "copy"))

	s.copyOf("source", "chosen", "thin", "1Gi")
	s.podWith("chosen", "sim-1", "chosen")
	s.requireCopy("chosen", source)
	require.Equal(t, "sim-2", s.nodeOf("chosen"), "although it would rather go to sim-1")

	// A clone of a clone, and a pod that also needs an empty volume.
	s.copyOf("copy", "again", "thin", "2Gi")
	s.sized("log", volume.GiB)
	s.podWith("both", "", "again", "log")
	s.requireCopy("again", s.volumeOf("copy"))
	require.Equal(t, "sim-2", s.nodeOf("both"))
	require.Equal(t, source.Spec.NodeAffinity, s.volumeOf("log").Spec.NodeAffinity)
	t.Logf("what was said of the empty volume: %q", s.events(s.name, "PersistentVolumeClaim", "log"))

	s.refusedCopies()
	s.sourceDeleted(source)
}

// refusedCopies checks that refused clones report the reason, and never get an empty volume.
func (s *space) refusedCopies() {
	t := s.t
	s.copyOf("source", "small", "thin-at-once", "512Mi")
	s.event(s.name, "PersistentVolumeClaim", "small", "ProvisioningFailed", `536870912 bytes (512 MiB) are asked for and dataSource "source" has 1073741824 bytes (1 GiB)`)
	s.class("linear-at-once", func(c *storagev1.StorageClass) { c.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate) })
	s.copyOf("source", "linear", "linear-at-once", "1Gi")
	s.event(s.name, "PersistentVolumeClaim", "linear", "ProvisioningFailed", `dataSource "source": cloning a claim needs layout "thin", and StorageClass "linear-at-once" has "linear"; take a VolumeSnapshot`)
	s.copyOf("log", "of-linear", "thin-at-once", "1Gi")
	s.event(s.name, "PersistentVolumeClaim", "of-linear", "ProvisioningFailed", `dataSource "log": its volume has layout "linear", and only those of layout "thin" can be copied; take a VolumeSnapshot`)
	s.copyOf("source", "large", "thin", "500Gi")
	s.podWith("large", "", "large")
	s.event(s.name, "PersistentVolumeClaim", "large", "ProvisioningFailed", `dataSource "source" is on node "sim-2", and a copy is on the node of its source: node "sim-2" has no room for it`)
	for _, claim := range []string{"small", "linear", "of-linear", "large"} {
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), claim, metav1.GetOptions{})
		require.NoError(t, err)
		require.Empty(t, c.Spec.VolumeName, claim)
	}
}

// sourceDeleted: once a clone is bound, its source's claim may be deleted. From then on, no more clones
// are promised.
func (s *space) sourceDeleted(source *corev1.PersistentVolume) {
	t, claims := s.t, s.client.CoreV1().PersistentVolumeClaims(s.name)
	require.NoError(t, claims.Delete(t.Context(), "source", metav1.DeleteOptions{}), "its pod keeps it for now")
	s.copyOf("source", "late", "thin-at-once", "1Gi")
	s.event(s.name, "PersistentVolumeClaim", "late", "ProvisioningFailed", `dataSource "source": that claim is being deleted`)
	require.NoError(t, s.client.CoreV1().Pods(s.name).Delete(context.WithoutCancel(t.Context()), "source", metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	await.Until(t, longest, func() string {
		v, err := s.client.CoreV1().PersistentVolumes().Get(t.Context(), source.Name, metav1.GetOptions{})
		require.NoError(t, err, "its node releases it, and nobody else")
		return await.Missing(v.Status.Phase == corev1.VolumeReleased, "the source's volume is %s", v.Status.Phase)
	})
	s.event(s.name, "PersistentVolumeClaim", "late", "ProvisioningFailed", `namespace "copies" has no such claim`)
	s.caughtUp(t)
	late, err := claims.Get(t.Context(), "late", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, late.Spec.VolumeName)
	s.requireCopy("copy", source)
}
