package dataset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// A label that is missing for a while removes no replica from its node.
func TestLabelThatFlapsReleasesNothing(t *testing.T) {
	r := newRig(t)
	relabel := func(value string) {
		for _, name := range []string{"node-0", "node-1"} {
			node := &corev1.Node{}
			require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Name: name}, node))
			if node.Labels == nil {
				node.Labels = map[string]string{}
			}
			node.Labels["gpu"] = value
			require.NoError(t, r.client.Update(t.Context(), node))
		}
	}
	relabel("present")
	v := volumeOf(flexlvmv1.SourceS3, 2, s3Options(nil))
	v.NodeAffinity = withData(corev1.NodeSelectorRequirement{Key: "gpu", Operator: corev1.NodeSelectorOpIn, Values: []string{"present"}})
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	relabel("")
	for range 8 {
		require.NoError(t, r.look())
	}
	require.Empty(t, r.done)
	status := r.get().Status
	require.Equal(t, flexlvmv1.StateRunning, status.State)
	for _, n := range status.Volumes[0].Nodes {
		require.Contains(t, n.Message, "has not matched nodeAffinity since", "the status tells which they are")
	}
	relabel("present")
	for range 3 {
		require.NoError(t, r.look())
	}
	for _, n := range r.get().Status.Volumes[0].Nodes {
		require.NotContains(t, n.Message, "nodeAffinity")
	}
	require.Empty(t, r.done)
}

func TestNodeThatDoesNotMatch(t *testing.T) {
	begin := func(t *testing.T) (*stage, *Replica) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
			v.Replicas, v.NodeAffinity, v.Options["nodeAffinityGrace"] = 1, withData(has("gpu")), "2h"
		})
		r := s.completed(0)
		s.Barred["node-0"] = true
		return s, r
	}
	since := func(r *Replica, ago time.Duration) {
		r.Claim.Annotations[annotationUnmatched] = now.Add(-ago).Format(time.RFC3339)
	}
	t.Run("from now on", func(t *testing.T) {
		s, _ := begin(t)
		out := s.requirePlan("annotate claim v-a-0")
		require.Equal(t, map[string]string{annotationUnmatched: now.Format(time.RFC3339)}, out.Actions[0].Annotations)
		require.EqualValues(t, 1, out.Status.ReadyReplicas)
		require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
		require.Contains(t, out.Status.Nodes[0].Message, "node-0 has not matched nodeAffinity since 2026-11-21T16:00:00Z; it is kept until 2026-11-21T18:00:00Z")
	})
	t.Run("for less than the grace", func(t *testing.T) {
		s, r := begin(t)
		since(r, 2*time.Hour-time.Second)
		s.requirePlan()
	})
	t.Run("for longer", func(t *testing.T) {
		s, r := begin(t)
		since(r, 2*time.Hour)
		out := s.requirePlan("unlabel node-0")
		require.Contains(t, out.Status.Nodes[0].Message, "has not matched nodeAffinity for 2h0m0s")
		s.Labelled = nil
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	})
	t.Run("while a pod reads it", func(t *testing.T) {
		s, r := begin(t)
		since(r, 2*time.Hour)
		s.Labelled, s.ReadOn = nil, map[string][]string{"node-0": {"trainer"}}
		out := s.requirePlan()
		require.Contains(t, out.Status.Nodes[0].Message, "as soon as no pod reads it; pods that read it: trainer")
	})
	t.Run("a controller that has just begun", func(t *testing.T) {
		s, r := begin(t)
		since(r, 48*time.Hour)
		s.Began = now.Add(-sightings + time.Second)
		s.requirePlan()
	})
	t.Run("a clock that was ahead", func(t *testing.T) {
		s, r := begin(t)
		since(r, -time.Hour)
		s.requirePlan("annotate claim v-a-0")
	})
	t.Run("matches again", func(t *testing.T) {
		s, r := begin(t)
		since(r, 48*time.Hour)
		s.Barred, s.Matching = nil, map[string]bool{"node-0": true}
		out := s.requirePlan("annotate claim v-a-0")
		require.Equal(t, map[string]string{annotationUnmatched: ""}, out.Actions[0].Annotations)
	})
	t.Run("a replica of an earlier flexlvm", func(t *testing.T) {
		s, r := begin(t)
		delete(r.Claim.Annotations, annotationAffinity)
		out := s.requirePlan("annotate claim v-a-0")
		require.Len(t, out.Actions[0].Annotations, 2)
	})
	t.Run("what the user asks for by an edit", func(t *testing.T) {
		s, r := begin(t)
		s.Config.NodeAffinity = withData(has("fast"))
		s.requirePlan("unlabel node-0")
		s.Labelled = nil
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
		// If the node matches after the edit, the claim records that.
		s.Barred, s.Matching, s.Labelled = nil, map[string]bool{"node-0": true}, []string{"node-0"}
		out := s.requirePlan("annotate claim v-a-0")
		require.Equal(t, affinityDigest(s.Config.NodeAffinity), out.Actions[0].Annotations[annotationAffinity])
		require.Same(t, r.Claim, out.Actions[0].Object)
	})
	t.Run("a preference is no requirement", func(t *testing.T) {
		s, r := begin(t)
		since(r, time.Minute)
		s.Config.NodeAffinity = s.Config.NodeAffinity.DeepCopy()
		s.Config.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1}}
		s.requirePlan()
	})
	_, err := ParseSource(volumeOf(flexlvmv1.SourceS3, 1, s3Options(options{"nodeAffinityGrace": "soon"})))
	require.ErrorContains(t, err, `nodeAffinityGrace "soon" is not a valid time`)
}
