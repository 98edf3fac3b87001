//go:build cluster

package gc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// clonable creates a thin pool and two classes for it, and removes them when the test ends.
func (b *bed) clonable(t *testing.T) {
	t.Helper()
	b.onNode(t, `lvcreate -qq --yes --thin --size 1536m --poolmetadatasize 64m --zero y --errorwhenfull y \
		--addtag flexlvm --addtag flexlvm.kind=pool --thinpool thinpool `+wide+`; mkdir -p /var/lib/flexlvm; touch /var/lib/flexlvm/called`)
	t.Cleanup(func() { b.onNode(t, "lvremove -qq -y "+wide+"/thinpool") })
	classes := b.client.StorageV1().StorageClasses()
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"clonable": storagev1.VolumeBindingWaitForFirstConsumer, "clonable-at-once": storagev1.VolumeBindingImmediate,
	} {
		_, err := classes.Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: pv.Provisioner, VolumeBindingMode: &mode,
			Parameters: map[string]string{"volumeGroup": wide, "layout": "thin", "thinPool": "thinpool"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, classes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
		})
	}
}

// testCopied: the daemon clones a claim in use before any pod uses the clone, and before its source is
// removed.
func (b *bed) testCopied(t *testing.T) {
	b.clonable(t)
	s := b.space(t, "copied")
	s.claim("clonable", "source")
	s.pod("main", "source")
	s.running("main")
	sum, source := s.sums("main"), s.volumeOf("source")

	copied := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "copy"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr("clonable-at-once"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"},
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("128Mi")}},
		},
	}
	_, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Create(t.Context(), copied, metav1.CreateOptions{})
	require.NoError(t, err)
	asked := time.Now()
	await.Until(t, longest, func() string {
		c, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), "copy", metav1.GetOptions{})
		require.NoError(t, err)
		return await.Missing(c.Status.Phase == corev1.ClaimBound, "the copy is not bound: %v", s.events(s.name, "PersistentVolumeClaim", "copy"))
	})
	b.say(t, "bound %.1f s after it was asked for", time.Since(asked).Seconds())

	// From now on its source may be deleted.
	s.deleteClaims("source")
	s.end("main")
	b.persistentVolumeGone(t, source)
	name := s.volumeOf("copy")
	require.Equal(t, volume.Ready, b.stateOf(t, name), "the copy is made before its source goes, and no pod has it yet")
	b.say(t, "the source was gone %.1f s after the copy was asked for", time.Since(asked).Seconds())
	b.event(t, s.name, "PersistentVolumeClaim", "copy", "VolumeCopied", source)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, source))
	b.onNode(t, fmt.Sprintf("lvremove -qq -y %s/%s", wide, source))

	b.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {namespace: %s, name: reader}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, command: [sh, -c, %q], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: copy}}]
`, s.name, cluster.BusyboxImage, cluster.Sleep))
	s.running("reader")
	read := s.sh("reader", "md5sum /data/proof; df -k /data | tail -n 1")
	lines := strings.Split(strings.TrimSpace(read), "\n")
	require.Len(t, lines, 2, read)
	require.Equal(t, strings.Fields(sum)[0], strings.Fields(lines[0])[0], "what the source had written")
	require.Contains(t, strings.Fields(lines[1]), "131072", "df shows what was asked for: %s", lines[1])
	s.end("reader")
}
