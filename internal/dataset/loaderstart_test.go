package dataset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A node whose clock is behind reports that a loader began before its Job was created. The load has its whole time
// nevertheless.
func TestTimeoutOnANodeWhoseClockIsBehind(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["timeoutForDataDownload"] = 1, "5m" })
	s.loading(0, corev1.PodRunning).Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: loader, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))}},
	}}
	s.Now = now.Add(5*time.Minute + afterDeadline - time.Second)
	require.False(t, s.requirePlan().Failed)
	s.Now = s.Now.Add(time.Second)
	out := s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "has expired since its loader began at 2026-11-21T16:00:00Z")
}
