//go:build cluster

package gc_test

import (
	"fmt"
	"path"
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

// limited is a class whose volumes are limited to 2 MiB per second.
const limited = "limited"

// The tests copy this many pieces of this many bytes.
const (
	pieces, piece = 16, 256 << 10
	write         = "dd if=/dev/zero of=/data/%s/io bs=256k count=16 oflag=direct"
	cached        = "dd if=/dev/zero of=/data/%s/cached bs=256k count=16"
)

// testIOLimits checks that a class's IO limits apply to its pod's volume and to no other, that they
// follow the annotation, and that they outlive the daemon.
func (b *bed) testIOLimits(t *testing.T) {
	policy := corev1.PersistentVolumeReclaimDelete
	_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: limited}, Provisioner: pv.Provisioner, ReclaimPolicy: &policy,
		Parameters:        map[string]string{"volumeGroup": wide, "reclaim": "immediate", "readBps": "2Mi", "writeBps": "2097152"},
		VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := b.space(t, "io-limits")
	s.claim(limited, "slow")
	s.claim(gone, "free")
	s.pod("main", "slow", "free")
	s.running("main")
	ran := time.Now()
	const both = "rbps=2097152 wbps=2097152 riops=max wiops=max"
	s.limitIs("main", "slow", both)
	b.say(t, "the limit was seen %.1f s after the pod was", time.Since(ran).Seconds())
	require.Empty(t, s.ioMax("main", "free"))
	b.say(t, "kubepods enables %s", strings.TrimSpace(b.onNode(t, "cat /sys/fs/cgroup/kubepods/cgroup.subtree_control")))
	s.sums("main") // the pod's own writes are done
	slow := s.measured()

	spoil := fmt.Sprintf("echo '%s wbps=9999999' >%s/io.max", s.deviceOf("main", "slow"), s.groupOf("main"))
	t.Run("a mount of anything calls the daemon", func(t *testing.T) {
		b.onNode(t, spoil+"; mount -t tmpfs none /mnt; umount /mnt")
		s.in(t).limitIs("main", "slow", both)
	})
	t.Run("a daemon that starts puts right what is not", func(t *testing.T) {
		s := s.in(t)
		b.onNode(t, spoil)
		b.configure(t, append([]string{"--dry-run=false"}, idle...)...) // an argument that changes nothing but causes a new pod
		s.limitIs("main", "slow", both)
		require.Empty(t, s.ioMax("main", "free"))
	})
	name := s.volumeOf("slow")
	t.Run("another annotation", func(t *testing.T) {
		s := s.in(t)
		b.kubectl(t, "annotate", "--overwrite", "pv", name, pv.AnnotationIOLimits+"=wbps=4194304 wiops=5000")
		s.limitIs("main", "slow", "rbps=max wbps=4194304 riops=max wiops=5000")
		s.rateIs(4*mib, fmt.Sprintf(write, "slow"))
	})
	t.Run("an annotation that says nothing", func(t *testing.T) {
		s := s.in(t)
		b.kubectl(t, "annotate", "--overwrite", "pv", name, pv.AnnotationIOLimits+"=wbps=fast")
		b.event(t, "default", "PersistentVolume", name, "IOLimitNotApplied", `wbps "fast"`)
		b.event(t, s.name, "PersistentVolumeClaim", "slow", "IOLimitNotApplied", `wbps "fast"`)
		s.limitIs("main", "slow", "rbps=max wbps=4194304 riops=max wiops=5000")
		b.kubectl(t, "annotate", "--overwrite", "pv", name, pv.AnnotationIOLimits+"=wbps=4194304")
		s.limitIs("main", "slow", "rbps=max wbps=4194304 riops=max wiops=max")
	})
	t.Run("operations", func(t *testing.T) {
		s := s.in(t)
		b.kubectl(t, "annotate", "--overwrite", "pv", name, pv.AnnotationIOLimits+"=wbps=4194304 riops=100")
		s.limitIs("main", "slow", "rbps=max wbps=4194304 riops=100 wiops=max")
		rate := s.held(100, func() float64 {
			return 200 / s.seconds("main", "dd if=/data/slow/io of=/dev/null bs=4k count=200 iflag=direct")
		})
		b.say(t, "limit 100 operations a second, measured %.1f", rate)
	})
	t.Run("another pod", func(t *testing.T) {
		s := s.in(t)
		s.seconds("main", fmt.Sprintf(cached, "slow")) // dirty pages must not delay the pod's end
		ends := time.Now()
		s.end("main")
		b.say(t, "the pod was gone %.1f s after its deletion", time.Since(ends).Seconds())
		s.pod("next", "slow", "free")
		s.running("next")
		s.limitIs("next", "slow", "rbps=max wbps=4194304 riops=100 wiops=max")
		require.Empty(t, s.ioMax("next", "free"))
	})
	t.Run("no annotation", func(t *testing.T) {
		s := s.in(t)
		b.kubectl(t, "annotate", "pv", name, pv.AnnotationIOLimits+"-")
		s.limitIs("next", "slow", "")
		s.sums("next")
		rate := s.faster("next", 3*slow, fmt.Sprintf(write, "slow"))
		b.say(t, "without a limit any more: %.1f MiB/s", rate/mib)
	})
}

// measured checks that the limit of 2 MiB per second slows the pod "main" accordingly, and only on the
// limited volume. It returns the write rate.
func (s *space) measured() float64 {
	s.t.Helper()
	slow := s.rateIs(2*mib, fmt.Sprintf(write, "slow"))
	free := s.faster("main", 3*slow, fmt.Sprintf(write, "free")) // else the limit has no effect, or also applies to the other volume
	s.say(s.t, "the same on the volume without a limit: %.1f MiB/s", free/mib)
	s.rateIs(2*mib, "dd if=/data/slow/io of=/dev/null bs=256k iflag=direct")
	s.rateIs(2*mib, fmt.Sprintf(cached, "slow")+" conv=fsync")
	return slow
}

// in returns the space for a subtest.
func (s *space) in(t *testing.T) *space { return &space{bed: s.bed, t: t, name: s.name} }

// rateIs checks that a command in the pod "main" reaches about that many bytes per second.
func (s *space) rateIs(limit float64, command string) float64 {
	s.t.Helper()
	rate := s.held(limit, func() float64 { return s.rate("main", command) })
	s.say(s.t, "limit %.0f MiB/s, measured %.2f MiB/s: %s", limit/mib, rate/mib, command)
	return rate
}

// held waits until a measured rate is at least half of its limit, because a busy machine may be slow
// for a while. No rate may be much above the limit.
func (s *space) held(limit float64, measure func() float64) (rate float64) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		rate = measure()
		require.LessOrEqual(s.t, rate, 1.2*limit)
		return await.Missing(rate >= 0.5*limit, "%.2f is far below the limit of %.2f", rate, limit)
	})
	return rate
}

// faster waits until a dd in a pod is faster than that many bytes per second: a busy machine is slow
// for a while, and a limit always is.
func (s *space) faster(pod string, than float64, command string) (rate float64) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		rate = s.rate(pod, command)
		return await.Missing(rate > than, "%s writes %.2f MiB/s and should write more than %.2f", pod, rate/mib, than/mib)
	})
	return rate
}

// rate returns the rate of a dd in a pod, in bytes per second.
func (s *space) rate(pod, command string) float64 {
	s.t.Helper()
	return pieces * piece / s.seconds(pod, command)
}

// seconds returns how long a command in a pod took.
func (s *space) seconds(pod, command string) float64 {
	s.t.Helper()
	out := s.sh(pod, "set -e; read begin rest </proc/uptime; "+command+" 2>/dev/null; read end rest </proc/uptime; echo $begin $end")
	var begin, end float64
	_, err := fmt.Sscan(out, &begin, &end)
	require.NoError(s.t, err, out)
	return max(end-begin, 0.01) // the clock's resolution
}

// limitIs waits until a pod has these limits on a claim's volume; "" means none.
func (s *space) limitIs(pod, claim, want string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		is := s.ioMax(pod, claim)
		return await.Missing(is == want, "io.max of %s for %s is %q and should be %q", pod, claim, is, want)
	})
}

// ioMax returns a pod's limits on a claim's volume as the kernel reports them.
func (s *space) ioMax(pod, claim string) string {
	s.t.Helper()
	device := s.deviceOf(pod, claim)
	for line := range strings.Lines(s.onNode(s.t, "cat "+s.groupOf(pod)+"/io.max")) {
		if limits, is := strings.CutPrefix(line, device+" "); is {
			return strings.TrimSpace(limits)
		}
	}
	return ""
}

// groupOf returns a pod's control group.
func (s *space) groupOf(pod string) string {
	s.t.Helper()
	out := strings.Fields(s.onNode(s.t, "find /sys/fs/cgroup/kubepods -maxdepth 2 -name pod"+s.uidOf(pod)))
	require.Len(s.t, out, 1)
	return out[0]
}

// deviceOf returns the device number of a claim that a pod has mounted.
func (s *space) deviceOf(pod, claim string) string {
	s.t.Helper()
	dir := path.Join("/var/lib/kubelet/pods", s.uidOf(pod), "volumes/flexlvm.io~flexlvm", s.volumeOf(claim))
	return strings.TrimSpace(s.onNode(s.t, "mountpoint -d "+dir))
}

func (s *space) uidOf(pod string) string {
	s.t.Helper()
	object, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), pod, metav1.GetOptions{})
	require.NoError(s.t, err)
	return string(object.UID)
}
