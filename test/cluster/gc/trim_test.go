//go:build cluster

package gc_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// testTrimmed: the space of files that a pod deletes returns to the thin pool without affecting the
// pod. Other volumes are not trimmed.
func (b *bed) testTrimmed(t *testing.T) {
	const class, never = "trimmed", "never-trimmed"
	for name, trim := range map[string]string{class: "auto", never: "never"} {
		_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: pv.Provisioner, ReclaimPolicy: ptr(corev1.PersistentVolumeReclaimDelete),
			Parameters:        map[string]string{"volumeGroup": thinGroup, "layout": "thin", "thinPool": thinPool, "reclaim": "immediate", "trim": trim},
			VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	s := b.space(t, "trimmed")
	s.claimOf(class, "thin", "300Mi")
	s.claimOf(gone, "thick", "300Mi")
	s.claim(never, "untouched")
	s.pod("main", "thin", "thick", "untouched")
	s.running("main")
	sum := s.sums("main")
	thin, thick, untouched := s.volumeOf("thin"), s.volumeOf("thick"), s.volumeOf("untouched")

	s.sh("main", "for v in thin thick; do dd if=/dev/zero of=/data/$v/gone bs=1M count=200; sync -f /data/$v/gone; done")
	full := b.inThinPool(t)
	s.sh("main", "rm /data/*/gone; for v in /data/*; do sync -f $v; done")
	b.say(t, "the thin pool held %d MiB before 200 MiB were deleted", full/mib)
	await.Until(t, longest, func() string {
		used := b.inThinPool(t)
		return await.Missing(used < full-190*mib, "the thin pool held %d MiB and holds %d", full/mib, used/mib)
	})
	b.say(t, "it holds %d MiB", b.inThinPool(t)/mib)
	require.Equal(t, sum, s.sums("main"))
	last := func(volume, group string) string {
		out := b.onNode(t, driver+" volumes show --group "+group+" "+volume)
		_, rest, found := strings.Cut(out, "Last trimmed:")
		require.True(t, found, out)
		return strings.Fields(rest)[0]
	}
	await.Until(t, longest, func() string {
		return await.Missing(strings.HasPrefix(last(thin, thinGroup), "20"), "when it was trimmed is not written down")
	})
	require.Equal(t, "-", last(thick, wide))
	require.Equal(t, "never", b.kubectl(t, "get", "pv", untouched, "-o", `jsonpath={.metadata.annotations.flexlvm\.io/trim}`))
	require.Equal(t, "-", last(untouched, thinGroup))
	s.end("main") // it can be unmounted
}

// inThinPool returns how many bytes the thin pool holds.
func (b *bed) inThinPool(t *testing.T) int64 {
	t.Helper()
	fields := strings.Fields(b.onNode(t, fmt.Sprintf("lvs --noheadings --nosuffix --units b -o lv_size,data_percent %s/%s", thinGroup, thinPool)))
	require.Len(t, fields, 2)
	size, err := strconv.ParseInt(fields[0], 10, 64)
	require.NoError(t, err)
	percent, err := strconv.ParseFloat(fields[1], 64)
	require.NoError(t, err)
	return int64(float64(size) * percent / 100)
}
