//go:build cluster

package gc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// testInUseElsewhere: a mount namespace that neither kubelet nor the daemon knows of holds a volume.
// The volume stays, that is reported, and it is removed as soon as possible.
func (b *bed) testInUseElsewhere(t *testing.T) {
	s := b.space(t, "elsewhere")
	s.claim(lazySmall, "held")
	s.pod("main", "held")
	s.running("main")
	name := s.volumeOf("held")
	// The process has the volume mounted elsewhere, because when kubelet unmounts its own mount and
	// removes the directory, the kernel detaches mounts there in all namespaces. In its own mount
	// namespace, which nobody else uses, it detaches the file system that testDiscovered mounts at the same time.
	pid := strings.TrimSpace(b.onNode(t, fmt.Sprintf(`unshare -m --propagation private sh -c '
		umount -l /mnt/disks/*/* /mnt/person; mount --bind /var/lib/kubelet/pods/*/volumes/*/%s /mnt && exec sleep 86400' </dev/null >/dev/null 2>&1 & echo $!`, name)))
	mounts := func(who string) string {
		return b.onNode(t, "grep -c "+mapped(small, name)+" /proc/"+who+"/mountinfo || true")
	}
	await.Until(t, longest, func() string { return await.Missing(mounts(pid) != "0\n", "the test does not hold the volume") })
	s.end("main")
	require.Equal(t, "0\n", mounts("self"), "the kubelet has unmounted it")
	require.Equal(t, "1\n", mounts(pid), "the test holds it")
	s.deleteClaims("held")
	b.persistentVolumeGone(t, name)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name))

	b.fill(t, small, leastMiB-50) // below its high threshold
	s.promise(lazySmall, small, "waiting")
	s.pod("waiting", "waiting")
	b.say(t, "shortfall: %s", b.condition(t, "Shortfall", metav1.ConditionTrue, "cannot be evicted while in use"))
	b.event(t, "default", "Node", node, "Shortfall", "cannot be evicted while in use")
	b.event(t, s.name, "PersistentVolumeClaim", "waiting", "Shortfall", "cannot be evicted while in use")
	b.moreRounds(t, 3, 0)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name), "the volume stays as it is")
	require.Contains(t, b.onNode(t, driver+" volumes show "+name), "Device open:    yes")

	b.onNode(t, "kill "+pid)
	s.runs("waiting", time.Now(), "the volume was released")
	b.evictedFor(t, name, "claim elsewhere/waiting")
	b.condition(t, "Shortfall", metav1.ConditionFalse, "")
}

// mapped returns the device of a volume as in mountinfo.
func mapped(group, name string) string {
	return "/dev/mapper/" + group + "-" + strings.ReplaceAll(name, "-", "--")
}

// testDeletedByForce: a pod was deleted from the API while its containers still run. Its volume is
// released, and not removed while they use it.
func (b *bed) testDeletedByForce(t *testing.T) {
	s := b.space(t, "by-force")
	s.claim(goneSmall, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	s.sums("main")
	kubelet := "kill -%s $(pidof kubelet)"
	b.onNode(t, fmt.Sprintf(kubelet, "STOP"))
	t.Cleanup(func() { b.onNode(t, fmt.Sprintf(kubelet, "CONT")) })

	require.NoError(t, s.client.CoreV1().Pods(s.name).Delete(t.Context(), "main", metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	s.deleteClaims("data")
	b.persistentVolumeGone(t, name)
	b.moreRounds(t, 3, 0)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name), "a container is still in it")
	root := "/proc/" + strings.TrimSpace(b.onNode(t, containerOf(s.name, "main"))) + "/root"
	b.onNode(t, "cd "+root+"/data; md5sum -c data/sum; echo more >data/more; sync -f data")

	b.onNode(t, fmt.Sprintf(kubelet, "CONT"))
	resumed := time.Now()
	b.becomes(t, name, "")
	b.say(t, "the volume was gone %.1f s after the kubelet was back", time.Since(resumed).Seconds())
}

// testRemovedByHand: somebody removes a claim's volume. That is reported before a pod needs the volume,
// and no empty volume replaces it.
func (b *bed) testRemovedByHand(t *testing.T) {
	s := b.space(t, "removed")
	s.claim(gone, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	s.end("main")
	b.onNode(t, lvremove(wide+"/"+name))
	b.say(t, "%s", b.event(t, "default", "PersistentVolume", name, "VolumeNeedsAttention", "is gone, so no pod can mount it", "delete claim removed/data"))

	s.pod("again", "data")
	b.event(t, s.name, "Pod", "again", "FailedMount", "has had the volume before")
	s.end("again")
	s.deleteClaims("data")
	b.persistentVolumeGone(t, name)
}

// containerOf returns a line of shell that prints the process ID of the sleep that a pod's container waits for.
// The container ends with it.
func containerOf(namespace, pod string) string {
	return fmt.Sprintf(`for p in /proc/[0-9]*; do
		if [ "$(cat $p/comm 2>/dev/null)" = sleep ] && tr '\0' '\n' <$p/environ 2>/dev/null | grep -qx OWNER=%s/%s; then echo ${p#/proc/}; exit; fi
	done; exit 1`, namespace, pod)
}
