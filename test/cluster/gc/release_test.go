//go:build cluster

package gc_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// testReleased: a claim of the shipped class is deleted. Its volume is kept with its data, and the
// report shows that.
func (b *bed) testReleased(t *testing.T) {
	s := b.space(t, "released")
	s.claim(lazy, "data")
	name := s.madeAhead("data")
	s.pod("main", "data")
	s.running("main")
	require.Equal(t, name, s.volumeOf("data"))
	sum := s.sums("main")
	object, err := b.client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, object.Finalizers, pv.Finalizer)
	s.end("main")

	s.deleteClaims("data")
	deleted := time.Now()
	b.persistentVolumeGone(t, name)
	b.say(t, "the PersistentVolume was gone %.1f s after its claim", time.Since(deleted).Seconds())
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name), "the volume changes before the API lets go")
	b.event(t, "default", "PersistentVolume", name, "VolumeReleased", "claim released/data is gone", "may be evicted")
	await.Until(t, longest, func() string {
		pool := poolOf(t, b.storage(t), wide)
		return await.Missing(pool.VolumesByState["unreferenced"] >= 1 && pool.Reclaimable.Value() >= leastMiB*mib, "the report shows %v", pool)
	})
	checked := b.onNode(t, fmt.Sprintf("mkdir -p /run/look; mount -o ro,norecovery /dev/%s/%s /run/look; cd /run/look; md5sum proof; cd /; umount /run/look", wide, name))
	require.Equal(t, strings.Fields(sum)[0], strings.Fields(checked)[0], "the data is still there")
}

// madeAhead has a claim bound as the scheduler does for a pod with it, but without the pod, and waits
// until the node has created the volume, whose name it returns.
func (s *space) madeAhead(claim string) (name string) {
	s.t.Helper()
	s.kubectl(s.t, "-n", s.name, "annotate", "pvc", claim, "volume.kubernetes.io/selected-node="+node)
	await.Until(s.t, longest, func() string {
		name = strings.TrimSpace(s.kubectl(s.t, "-n", s.name, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"))
		return await.Missing(name != "", "claim %s has no PersistentVolume", claim)
	})
	bound := time.Now()
	s.becomes(s.t, name, volume.Ready)
	s.say(s.t, "volume %s was ready %.1f s after its claim had its PersistentVolume, without any pod", name, time.Since(bound).Seconds())
	return name
}

// testReport checks what the node reports after the other tests: with a shortfall the table and the
// checks would differ.
func (b *bed) testReport(t *testing.T) {
	b.readableReport(t)
	b.testDoctor(t, b.plugin(t, "default"))
}

// readableReport checks that `kubectl get nodestorage` is readable.
func (b *bed) readableReport(t *testing.T) {
	t.Helper()
	pools := strings.Join([]string{wide, small, thinGroup, thinGroup + "/" + thinPool, stripedGroup, mirrorGroup}, ",")
	each := func(one string) string { return "(" + one + ",){5}" + one + " " }
	quantities := each(`[0-9.]+([MG]i)?B`)
	like := regexp.MustCompile(strings.ReplaceAll(`^node1 True `+pools+" "+quantities+each(`\d+%`)+quantities+quantities+quantities+
		`\d+ \d+ False False \d\S*$`, " ", " +"))
	await.Until(t, longest, func() string {
		table := b.kubectl(t, "get", "nodestorage")
		head, line, _ := strings.Cut(strings.TrimSpace(table), "\n")
		require.Equal(t, strings.Fields("NAME READY POOLS SIZE USED FREE RECLAIMABLE PROMISED VOLUMES ORPHANS PRESSURE SHORTFALL SEEN"), strings.Fields(head))
		if !like.MatchString(line) {
			return "kubectl get nodestorage says\n" + table
		}
		b.say(t, "kubectl get nodestorage\n%s", table)
		return ""
	})
}

// testRemovedAtOnce: the class's wipe and immediate reclaim are carried out.
func (b *bed) testRemovedAtOnce(t *testing.T) {
	const secret = "nobody-shall-read-this"
	s := b.space(t, "at-once")
	s.claim(wiped, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	s.sh("main", "yes "+secret+" | head -c 1048576 >/data/data/secret; sync -f /data/data")
	s.end("main")
	var device string
	var first, extent, size, begin int64 // in MiB, except for the first extent
	where := b.onNode(t, fmt.Sprintf(`units='--noheadings --units m --nosuffix'
		lvs $units --separator ' ' -o devices,vg_extent_size,lv_size %s/%s | tr '()' '  '; pvs $units -o pe_start /dev/vdb2`, wide, name))
	_, err := fmt.Sscan(strings.ReplaceAll(where, ".00", ""), &device, &first, &extent, &size, &begin)
	require.NoError(t, err, where)
	// Without zeros, which grep would read as one long line.
	count := fmt.Sprintf(`dd if=%s bs=1M iflag=direct skip=%d count=%d 2>/dev/null | tr -d '\000' | grep -a -c %s || true`, device, first*extent+begin, size, secret)
	require.NotEqual(t, "0\n", b.onNode(t, count), "the test finds the secret on the disk")

	s.deleteClaims("data")
	deleted := time.Now()
	b.becomes(t, name, "")
	b.say(t, "the volume was gone %.1f s after its claim, wiped", time.Since(deleted).Seconds())
	b.persistentVolumeGone(t, name)
	require.Equal(t, "0\n", b.onNode(t, count), "the secret is still on the disk")
	e := b.evictionOf(t, name)
	require.Equal(t, "Immediate", e.Reason)
	b.event(t, "default", "Node", node, "VolumeEvicted", name, "reclaim: immediate")
}

// testRetained: with the reclaim policy Retain nothing happens until a person deletes the
// PersistentVolume, and then the volume is retained.
func (b *bed) testRetained(t *testing.T) {
	s := b.space(t, "retained")
	s.claim(kept, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	s.end("main")
	s.deleteClaims("data")
	s.phase(name, corev1.VolumeReleased)
	s.staysReady(name)
	s.phase(name, corev1.VolumeReleased)

	b.kubectl(t, "delete", "pv", name, "--timeout=240s")
	require.Equal(t, volume.Retained, b.stateOf(t, name))
	await.Until(t, longest, func() string {
		pool := poolOf(t, b.storage(t), wide)
		return await.Missing(pool.VolumesByState["retained"] >= 1, "the report shows %v", pool)
	})
	b.event(t, "default", "PersistentVolume", name, "VolumeReleased", "Retain", "flexlvm volumes forget")
}

// testDeletedByHand: a PersistentVolume with the reclaim policy Delete is deleted while its claim
// exists. Nothing happens until the claim is deleted, too.
func (b *bed) testDeletedByHand(t *testing.T) {
	s := b.space(t, "by-hand")
	s.claim(lazy, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	sum := s.sums("main")
	b.kubectl(t, "delete", "pv", name, "--wait=false")
	s.staysReady(name)
	require.Equal(t, sum, s.sums("main"))

	s.end("main")
	s.deleteClaims("data")
	b.persistentVolumeGone(t, name)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name))
}

// staysReady checks that a volume is ready and stays so through further rounds of the daemon. On a slow
// machine it may only just have become ready, because the driver records that after its reply to
// kubelet.
func (s *space) staysReady(name string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		is := s.stateOf(s.t, name)
		return await.Missing(is != volume.Creating, "volume %s is %q", name, is)
	})
	require.Equal(s.t, volume.Ready, s.stateOf(s.t, name))
	s.looksTwice(s.t)
	require.Equal(s.t, volume.Ready, s.stateOf(s.t, name))
}

// phase waits for a PersistentVolume's phase.
func (s *space) phase(name string, want corev1.PersistentVolumePhase) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		v, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), name, metav1.GetOptions{})
		require.NoError(s.t, err)
		return await.Missing(v.Status.Phase == want, "PersistentVolume %s is %s, not %s", name, v.Status.Phase, want)
	})
}
