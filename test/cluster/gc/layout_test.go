//go:build cluster

package gc_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// The groups for layouts: with three devices, with two, and with a thin pool.
const (
	stripedGroup, mirrorGroup = "three", "two"
	thinGroup, thinPool       = "thin", "thinpool"
)

// A layoutCase is a layout, a volume that uses so much of its pool that another cannot grow, and the
// size that the other one requests.
type layoutCase struct {
	group, pool    string // in pool, or in the group itself
	parameters     map[string]string
	ballast, wants string
}

var layoutCases = map[string]layoutCase{
	"striped": {stripedGroup, stripedGroup, map[string]string{"layout": "striped", "stripes": "3"}, "900Mi", "450Mi"},
	"raid1":   {mirrorGroup, mirrorGroup, map[string]string{"layout": "raid1"}, "300Mi", "450Mi"},
	"thin":    {thinGroup, thinGroup + "/" + thinPool, map[string]string{"layout": "thin", "thinPool": thinPool, "overprovisionRatio": "2"}, "500Mi", "700Mi"},
}

// testLayout checks on a real node that a volume of a layout has exactly its size and grows online. If
// its pool has no space, that is reported, and the volume grows as soon as there is space.
func (b *bed) testLayout(t *testing.T, class string, c layoutCase) {
	parameters := maps.Clone(c.parameters)
	parameters["volumeGroup"] = c.group
	_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: pv.Provisioner, Parameters: parameters,
		ReclaimPolicy: ptr(corev1.PersistentVolumeReclaimDelete), AllowVolumeExpansion: ptr(true),
		VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := b.space(t, "layout-"+class)
	s.claimOf(class, "data", "100Mi")
	s.claimOf(class, "ballast", c.ballast)
	s.pod("data", "data")
	s.pod("ballast", "ballast")
	s.running("data", "ballast")
	sum := s.sums("data")
	require.Equal(t, class, s.layoutOf(s.volumeOf("data"), c.group))

	require.EqualValues(t, 100*mib, s.sizeOf("data"))
	s.fillsToTheByte("data", 100*mib)
	s.grow("data", "250Mi")
	s.has("data", 250*mib)
	s.fillsToTheByte("data", 250*mib)
	require.Equal(t, sum, s.sums("data"))
	b.say(t, "grown in use")
	if c.pool != c.group { // written data counts there; a full pool promises nothing, whatever may be evicted
		s.sh("ballast", "dd if=/dev/zero of=/data/ballast/fill bs=1M count=250; sync -f /data/ballast/fill")
		b.looksTwice(t) // the report decides
	}

	s.grow("data", c.wants)
	told := b.event(t, s.name, "PersistentVolumeClaim", "data", "GrowthWaiting", "waits to grow from 250Mi to "+c.wants)
	b.say(t, "the claim is told %s", told)
	require.EqualValues(t, 250*mib, s.sizeOf("data"))
	require.Equal(t, sum, s.sums("data"), "what cannot grow goes on")
	require.Equal(t, c.pool, poolOf(t, b.storage(t), c.pool).Name)

	given := s.volumeOf("ballast")
	s.end("ballast")
	s.deleteClaims("ballast")
	began := time.Now()
	s.has("data", bytesOf(t, c.wants))
	b.say(t, "grown %.0f s after another claim was deleted", time.Since(began).Seconds())
	b.becomes(t, given, "")
	s.fillsToTheByte("data", bytesOf(t, c.wants))
	require.Equal(t, sum, s.sums("data"))
}

func bytesOf(t *testing.T, size string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSuffix(size, "Mi"), 10, 64)
	require.NoError(t, err)
	return n * mib
}

// sh runs a line of shell in a pod and returns its output.
func (s *space) sh(pod, line string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute) // the pod may hang
	defer cancel()
	out, err := s.Exec(ctx, s.name, pod, "sh", "-c", line)
	require.NoError(s.t, err, out)
	return out
}

// layoutOf returns LVM's name of a volume's layout, which is the same as the class's.
func (s *space) layoutOf(name, group string) string {
	s.t.Helper()
	return strings.TrimSpace(s.onNode(s.t, fmt.Sprintf("lvs --noheadings -o segtype %s/%s", group, name)))
}

// sizeOf returns a volume's size as its pod sees it.
func (s *space) sizeOf(claim string) int64 {
	s.t.Helper()
	var block, blocks int64
	out := s.sh(claim, "stat -f -c '%S %b' /data/"+claim)
	_, err := fmt.Sscan(out, &block, &blocks)
	require.NoError(s.t, err, out)
	return block * blocks
}

// has waits until a claim has a size, and checks that its pod then sees it. It does not wait for what the pod
// sees, because each look is a process in the pod, which delays the growth on a node with one processor.
func (s *space) has(claim string, size int64) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.t.Context(), claim, metav1.GetOptions{})
		require.NoError(s.t, err)
		is := c.Status.Capacity.Storage().Value()
		return await.Missing(is == size, "claim %s has %d bytes and should have %d; %v", claim, is, size, s.events(s.name, "Pod", claim))
	})
	require.Equal(s.t, size, s.sizeOf(claim))
}

// fillsToTheByte checks that a volume can be written to its last block and no further. Its size is a
// multiple of a block.
func (s *space) fillsToTheByte(claim string, size int64) {
	s.t.Helper()
	out := s.sh(claim, fmt.Sprintf(`cd /data/%s; for bs in 64k 4k; do dd if=/dev/zero bs=$bs 2>&1 >>fill; done
		stat -f -c '%%S %%b %%f' .; rm fill; sync -f .`, claim))
	require.Equal(s.t, 2, strings.Count(out, "No space left on device"), out)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var block, blocks, free int64
	_, err := fmt.Sscan(lines[len(lines)-1], &block, &blocks, &free)
	require.NoError(s.t, err, out)
	require.Equal(s.t, size, block*blocks, out)
	require.Zero(s.t, free, out)
}

// grow requests a larger volume.
func (s *space) grow(claim, size string) {
	s.t.Helper()
	s.kubectl(s.t, "-n", s.name, "patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
}
