package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A volume that consumers write to is ready only when all of it is loaded, also with stream: otherwise the loader could
// replace what they write.
func TestNoStreamForConsumersThatWrite(t *testing.T) {
	for name, change := range map[string]func(*flexlvmv1.VolumeConfig){
		"S3-Dev": func(v *flexlvmv1.VolumeConfig) { v.SourceType = flexlvmv1.SourceS3Dev },
		"resync": func(v *flexlvmv1.VolumeConfig) { v.Options["resync"] = "true" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, change, func(v *flexlvmv1.VolumeConfig) {
				v.Replicas, v.Options["stream"], v.Options["streamAfter"] = 1, "true", "10"
			})
			r := s.loading(0, corev1.PodRunning)
			r.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			container := r.Job.Spec.Template.Spec.Containers[0]
			require.NotContains(t, container.Args, "--ready-after=10")
			require.Contains(t, container.Args, "--keep-changed")
			require.Nil(t, container.ReadinessProbe)
			s.Labelled = []string{"node-0"} // by an earlier controller
			out := s.requirePlan("unlabel node-0")
			require.Zero(t, out.Status.ReadyReplicas)
			require.Equal(t, flexlvmv1.ReplicaLoading, out.Status.Nodes[0].State)
			require.Len(t, out.Advice, 1)
			require.Contains(t, out.Advice[0], "stream has no effect")
		})
	}
}
