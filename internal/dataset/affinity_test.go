package dataset

import (
	"fmt"
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
	v.NodeAffinity = requiredAffinity(corev1.NodeSelectorRequirement{Key: "gpu", Operator: corev1.NodeSelectorOpIn, Values: []string{"present"}})
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

// The note about a node that does not match is in a message once, however often plans keep the message.
func TestNoteIsNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		begin   func(*stage) *Replica
		message string
		stale   []string
	}{
		"a failed refresh": {
			begin: func(s *stage) *Replica {
				r := s.holding(0, "one")
				r.Job = nil
				r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
				return r
			},
			message: refreshFailed + "no such bucket", stale: []string{"claim v-a-0 on node node-0: no such bucket"},
		},
		"a load": {begin: func(s *stage) *Replica { return s.loading(0, corev1.PodRunning) }, message: "is being loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
				v.Replicas, v.NodeAffinity, v.Options["refresh"] = 1, requiredAffinity(labelExists("gpu")), "10m"
			})
			r := c.begin(s)
			r.Pod = &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			out := s.requirePlan()
			out.Status.Nodes[0].Message = c.message
			s.recorded(out)
			s.NotMatching["node-0"], r.Claim.Annotations[annotationUnmatched] = true, now.Format(time.RFC3339)
			next := func(words ...string) string {
				t.Helper()
				out := s.requirePlan(words...)
				require.Equal(t, c.stale, out.Stale)
				require.Empty(t, eventsOf(s.before(), out.Status))
				s.recorded(out)
				return out.Status.Nodes[0].Message
			}
			want := next()
			require.Regexp(t, "^"+c.message+"; its node node-0 has not matched nodeAffinity since [^;]*; it is kept until [^;]*$", want)
			for range 3 {
				require.Equal(t, want, next())
			}
			s.NotMatching, s.Matching = nil, map[string]bool{"node-0": true}
			require.Equal(t, c.message, next("annotate claim v-a-0"))
		})
	}
}

// A message names the first of many pods.
func TestMessagesNameFewPods(t *testing.T) {
	var pods []string
	for i := range 1000 {
		pods = append(pods, fmt.Sprintf("consumer-of-the-dataset-with-some-name-%03d", i))
	}
	short := func(message string) {
		t.Helper()
		require.Less(t, len(message), 1024)
		require.Contains(t, message, "name-000, ")
		require.Contains(t, message, "name-009 and 990 more")
	}
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.NodeAffinity = 1, requiredAffinity(labelExists("gpu")) })
	r := s.completed(0)
	s.NotMatching["node-0"], s.Labelled, s.ConsumersByNode = true, nil, map[string][]string{"node-0": pods}
	r.Claim.Annotations[annotationUnmatched] = now.Add(-48 * time.Hour).Format(time.RFC3339)
	short(s.requirePlan().Status.Nodes[0].Message)

	s, _ = newUpload(t)
	s.Consumers = pods
	short(s.requirePlan("delete job v-a-put").Status.Message)

	s, r = newMirror(t)
	r.Claim.DeletionTimestamp, s.Labelled, s.Consumers = &metav1.Time{Time: now}, nil, pods
	short(s.requirePlan().Status.Nodes[0].Message)

	require.Equal(t, "a, b", firstOf([]string{"a", "b"}))
	require.Empty(t, firstOf(nil))
}

func TestNodeThatDoesNotMatch(t *testing.T) {
	begin := func(t *testing.T) (*stage, *Replica) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
			v.Replicas, v.NodeAffinity, v.Options["nodeAffinityGrace"] = 1, requiredAffinity(labelExists("gpu")), "2h"
		})
		r := s.completed(0)
		s.NotMatching["node-0"] = true
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
		s.Labelled, s.ConsumersByNode = nil, map[string][]string{"node-0": {"trainer"}}
		out := s.requirePlan()
		require.Contains(t, out.Status.Nodes[0].Message, "as soon as no pod reads it; pods that read it: trainer")
	})
	t.Run("a controller that has just begun", func(t *testing.T) {
		s, r := begin(t)
		since(r, 48*time.Hour)
		s.StartedAt = now.Add(-minObservation + time.Second)
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
		s.NotMatching, s.Matching = nil, map[string]bool{"node-0": true}
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
		s.Config.NodeAffinity = requiredAffinity(labelExists("fast"))
		s.requirePlan("unlabel node-0")
		s.Labelled = nil
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
		// If the node matches after the edit, the claim records that.
		s.NotMatching, s.Matching, s.Labelled = nil, map[string]bool{"node-0": true}, []string{"node-0"}
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
