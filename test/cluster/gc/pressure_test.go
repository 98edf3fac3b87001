//go:build cluster

package gc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// testPressure: a group with space for four volumes has three released ones and one in use. A claim
// that does not fit gets the space of the least recently used ones, and no more of them are evicted
// than necessary. The test runs in parallel with others once its volumes are released.
func (b *bed) testPressure(t *testing.T) {
	s := b.space(t, "pressure")
	names := []string{"kept", "oldest", "older", "old"}
	s.claim(lazySmall, names...)
	for _, name := range names {
		s.pod(name, name)
	}
	s.running(names...)
	volumes := s.volumesOf(names...)
	sum := s.sums("kept")
	for _, name := range names[1:] {
		s.end(name)
		time.Sleep(time.Second) // the order of evictions compares last uses in whole seconds
	}
	// Released in the reverse order, because their last use is what counts.
	for _, name := range []string{"old", "older", "oldest"} {
		s.deleteClaims(name)
		b.persistentVolumeGone(t, volumes[name])
	}
	for _, name := range names[1:] {
		require.Equal(t, volume.Unreferenced, b.stateOf(t, volumes[name]), name)
	}
	b.say(t, "three volumes wait, %d MiB are free", b.free(t, small)/mib)
	t.Parallel()

	s.comes("one", "64Mi")
	require.Equal(t, volume.State(""), b.stateOf(t, volumes["oldest"]))
	require.Equal(t, volume.Unreferenced, b.stateOf(t, volumes["older"]), "one was enough")
	require.Equal(t, volume.Unreferenced, b.stateOf(t, volumes["old"]), "one was enough")
	b.evictedFor(t, volumes["oldest"], "claim pressure/one")

	s.comes("two", "350Mi")
	b.evictedFor(t, volumes["older"], "claim pressure/two")
	b.evictedFor(t, volumes["old"], "claim pressure/two")
	require.Equal(t, sum, s.sums("kept"), "what is in use stays as it is")

	b.testShortfall(t, s)
	require.Equal(t, sum, s.sums("kept"))
}

// evictedFor checks that a volume was evicted for a claim, and that the reason is reported.
func (b *bed) evictedFor(t *testing.T, name, claim string) {
	t.Helper()
	b.becomes(t, name, "")
	e := b.evictionOf(t, name)
	require.Equal(t, "Promised", e.Reason)
	require.Equal(t, small, e.Pool)
	require.Contains(t, e.Message, claim)
	b.say(t, "%s", b.event(t, "default", "Node", node, "VolumeEvicted", small+"/"+name, "Promised", claim))
}

// comes creates a claim and its pod in the small group, and logs how long the pod took to run.
func (s *space) comes(name, size string) {
	s.t.Helper()
	s.claimOf(lazySmall, name, size)
	s.pod(name, name)
	s.runs(name, time.Now(), "its creation")
}

// runs waits until a pod runs, and logs how long that took since then and since its first failed mount.
func (s *space) runs(name string, since time.Time, what string) {
	s.t.Helper()
	var failed time.Time
	await.Until(s.t, longest, func() string {
		pod, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
		require.NoError(s.t, err)
		events := s.events(s.name, "Pod", name)
		if failed.IsZero() && strings.Contains(fmt.Sprint(events), "FailedMount") {
			failed = time.Now()
		}
		return await.Missing(pod.Status.Phase == corev1.PodRunning, "pod %s is %s: %v", name, pod.Status.Phase, events)
	})
	text := "no mount failed"
	if !failed.IsZero() {
		text = fmt.Sprintf("%.1f s after a mount had failed", time.Since(failed).Seconds())
	}
	s.say(s.t, "pod %s runs %.1f s after %s (%s)", name, time.Since(since).Seconds(), what, text)
}

// testShortfall: nothing is left to evict, which is reported everywhere. As soon as a volume is
// released, the pod runs.
func (b *bed) testShortfall(t *testing.T, s *space) {
	s.claim(lazySmall, "more")
	s.pod("more", "more")
	b.event(t, s.name, "PersistentVolumeClaim", "more", "NoRoom", `volume group "small"`)
	require.NoError(t, s.client.CoreV1().Pods(s.name).Delete(t.Context(), "more", metav1.DeleteOptions{}))
	s.deleteClaims("more") // the provisioner makes no promise that cannot be kept

	s.promise(lazySmall, small, "three")
	s.pod("three", "three")
	b.event(t, s.name, "Pod", "three", "FailedMount", "not enough free space")
	b.event(t, s.name, "PersistentVolumeClaim", "three", "Shortfall", "is missing", "vgextend")
	b.event(t, "default", "Node", node, "Shortfall", "claim pressure/three")
	b.condition(t, "DiskPressure", metav1.ConditionTrue, "claim pressure/three")
	b.say(t, "shortfall: %s", b.condition(t, "Shortfall", metav1.ConditionTrue, "claim pressure/three"))

	given := s.volumeOf("one")
	s.end("one")
	s.deleteClaims("one")
	s.runs("three", time.Now(), "another claim was deleted")
	b.evictedFor(t, given, "claim pressure/three")
	b.condition(t, "Shortfall", metav1.ConditionFalse, "")
	b.condition(t, "DiskPressure", metav1.ConditionFalse, "")
}
