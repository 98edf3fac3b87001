//go:build cluster

package gc_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
)

// daemonPID is a line of shell that prints the process IDs of the node's daemons.
const daemonPID = "pgrep -x gc"

// testServerAway checks that while the API server is down, nothing is evicted or removed although
// everything calls for it, and that pods get their volumes nevertheless.
func (b *bed) testServerAway(t *testing.T) {
	s := b.space(t, "away")
	s.claim(lazySmall, "live", "waiting")
	s.claim(gone, "pending") // in another group, so that the small group does not need its space
	s.pod("live", "live")
	s.pod("other", "waiting", "pending")
	s.running("live", "other")
	volumes := s.volumesOf("live", "waiting", "pending")
	sum := s.sums("live")
	options := s.mountOptions(volumes["live"])
	s.end("other")
	s.deleteClaims("waiting")
	b.persistentVolumeGone(t, volumes["waiting"])
	require.Equal(t, volume.Unreferenced, b.stateOf(t, volumes["waiting"]))

	// The release of one volume is not yet observed by the daemon when the API server goes down, so the
	// daemon cannot confirm it.
	b.onNode(t, "kill -STOP $("+daemonPID+")")
	s.deleteClaims("pending")
	s.phase(volumes["pending"], corev1.VolumeReleased)
	require.NoError(t, b.Kill(t.Context(), apiServer))
	away := time.Now()
	b.fill(t, small, 50) // over the high threshold
	b.onNode(t, "kill -CONT $("+daemonPID+")")
	b.say(t, "the API server is away")

	b.onNode(t, fmt.Sprintf(`mkdir -p /run/again; %[1]s mount /run/again '%[2]s' | grep '"Success"'
		cd /run/again; sed 's|live/||' sum | md5sum -c; cd /; %[1]s unmount /run/again | grep '"Success"'`, driver, options))
	b.restartContainer(t, s.name, "live")
	b.moreRounds(t, 0, 4)
	require.Equal(t, volume.Unreferenced, b.stateOf(t, volumes["waiting"]), "evicted without a word from the API server")
	require.Equal(t, volume.Ready, b.stateOf(t, volumes["pending"]), "released without a word from the API server")

	// Otherwise kube-controller-manager, which removes the last finalizer of PersistentVolumes, would wait
	// as long again before it tries to watch them.
	require.NoError(t, b.Kill(t.Context(), controllerManager))
	require.NoError(t, b.Run(t.Context(), apiServer))
	require.NoError(t, b.Run(t.Context(), controllerManager))
	back := time.Now()
	b.say(t, "the API server is back after %.0f s", back.Sub(away).Seconds())
	b.becomes(t, volumes["pending"], "")
	b.becomes(t, volumes["waiting"], "")
	b.say(t, "the daemon has caught up %.1f s after the API server was back", time.Since(back).Seconds())
	b.persistentVolumeGone(t, volumes["pending"])
	b.say(t, "and so has Kubernetes, %.1f s after it was back", time.Since(back).Seconds())
	require.Equal(t, "Immediate", b.evictionOf(t, volumes["pending"]).Reason)
	require.Equal(t, "HighThreshold", b.evictionOf(t, volumes["waiting"]).Reason)
	b.condition(t, "Ready", metav1.ConditionTrue, "")
	require.Equal(t, sum, s.sums("live"))
}

// mountOptions returns the options that kubelet passes to the driver to mount a volume.
func (s *space) mountOptions(name string) string {
	s.t.Helper()
	object, err := s.client.CoreV1().PersistentVolumes().Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	options := maps.Clone(object.Spec.FlexVolume.Options)
	maps.Copy(options, map[string]string{
		"kubernetes.io/fsType": "xfs", "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": name,
		"kubernetes.io/pod.name": "again", "kubernetes.io/pod.namespace": s.name, "kubernetes.io/pod.uid": "0f1e2d3c",
		"kubernetes.io/serviceAccount.name": "default",
	})
	text, err := json.Marshal(options)
	require.NoError(s.t, err)
	return string(text)
}

// restartContainer kills a pod's container and waits until kubelet has started another, which has found
// its files.
func (b *bed) restartContainer(t *testing.T, namespace, pod string) {
	t.Helper()
	find := containerOf(namespace, pod)
	b.onNode(t, "was=$("+find+"); kill -9 $was; for try in $(seq 300); do now=$("+find+") && [ $now != $was ] && exit 0; sleep 0.2; done; exit 1")
}
