package dataset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func newWritable(t *testing.T) *stage {
	t.Helper()
	return newStage(t, func(v *flexlvmv1.VolumeConfig) { v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1 })
}

// Whatever differs from what is asked for, what consumers wrote stays, can be used,
// and the status says what it is.
func TestWhatConsumersWroteIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stage, *Replica)
		why    string
		usable int32
	}{
		"another source":           {func(s *stage, _ *Replica) { s.Source.URL = "s3://b/q/" }, "it holds what the volume asked for earlier", 1},
		"a newer flexlvm":          {func(_ *stage, r *Replica) { r.Claim.Annotations[annotationLoad] = "of another digest" }, "it holds what the volume asked for earlier", 1},
		"its node lost its labels": {func(s *stage, _ *Replica) { s.Barred["node-0"] = true }, "its node is not among those", 1},
		"one too many":             {func(s *stage, _ *Replica) { s.Config.Replicas = 0 }, "it is one more than wanted", 1},
		"no PersistentVolume": {func(s *stage, r *Replica) {
			r.Claim.Status.Phase, r.Volume, r.Node, s.Labelled = corev1.ClaimLost, nil, "", nil
		}, "its PersistentVolume is gone", 0},
		"told to go": {func(_ *stage, r *Replica) { r.Volume.Annotations[replica.AnnotationEvictable] = "2026-11-21T16:00:10Z" }, "it was evicted", 1},
		"another sourceType under its id": {func(s *stage, _ *Replica) {
			s.Source.Type = flexlvmv1.SourceS3
			s.Readers.Claim = readersClaim(s.Owner, s.Config, s.Source)
			s.Readers.Volume = readersVolume(s.Owner, s.Config, s.Source, s.Class, s.Cluster)
		}, "it was made for another sourceType", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWritable(t)
			c.change(s, s.completed(0))
			out := s.requirePlan()
			require.True(t, out.Failed)
			require.Contains(t, out.Status.Message, c.why)
			require.Contains(t, out.Status.Message, "claim v-a-0")
			require.Equal(t, c.usable, out.Status.ReadyReplicas)
		})
		t.Run(name+", before it is complete", func(t *testing.T) {
			s := newWritable(t)
			r := s.claimed(0)
			c.change(s, r)
			s.Labelled = nil
			out := s.requirePlan() // and nothing is loaded over it
			require.True(t, out.Failed)
			require.Contains(t, out.Status.Message, c.why)
		})
	}
}

// The spec does not name it any more, so whether it was to be uploaded is not known.
func TestDroppedVolumeIsKept(t *testing.T) {
	s := newWritable(t)
	r := s.completed(0)
	s.Config, s.Source, s.Wanted, s.Dropped, s.Labelled = flexlvmv1.VolumeConfig{ID: "a"}, Source{}, false, true, nil
	out := s.requirePlan()
	require.False(t, out.Gone)
	require.Contains(t, out.Status.Message, "is not in the spec any more; claim v-a-0 is kept")
	// Its user deletes the claim, or the VolumeManager.
	s.Dropped = false
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	s.Dropped, r.Claim.DeletionTimestamp = true, &metav1.Time{Time: now}
	s.requirePlan("delete job v-a-0")
}

// A load that failed for good takes nothing with it that was written meanwhile.
func TestFailedLoadKeepsWhatConsumersWrote(t *testing.T) {
	s := newWritable(t)
	s.ended(0, batchv1.JobFailed, `{"state":"failed","message":"access denied"}`)
	for range 3 {
		out := s.requirePlan()
		require.True(t, out.Failed)
		require.Equal(t, "access denied; claim v-a-0 is kept, as consumers may have written to it", out.Status.Nodes[0].Message)
		s.recorded(out)
	}
	s.Owner.Annotations = map[string]string{AnnotationRetry: "1"}
	s.requirePlan("delete job v-a-0")
}

// A volume that grows is mounted for it, and nothing is loaded over it.
func TestVisitOfWritableLoadsNothing(t *testing.T) {
	s := newWritable(t)
	r := s.completed(0)
	s.Source.Capacity = resource.MustParse("2Gi")
	r.Claim.Spec.Resources, r.Job = room(s.Source.Capacity), nil
	out := s.requirePlan("create job v-a-0")
	require.Equal(t, "prepare", out.Actions[0].Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args[0])
}

// Volumes that were not complete may hold what consumers wrote as well.
func TestUploadBeforeItIsComplete(t *testing.T) {
	begin := func(t *testing.T) (*stage, *Replica) {
		s, _ := newUpload(t)
		s.Put = nil
		return s, s.loading(0, corev1.PodRunning)
	}
	t.Run("while it loads", func(t *testing.T) {
		s, r := begin(t)
		s.requirePlan("delete job v-a-0")
		r.Job.DeletionTimestamp = &metav1.Time{Time: now}
		s.requirePlan()
		r.Job, r.Busy = nil, true
		s.requirePlan()
		r.Busy = false
		s.requirePlan("create job v-a-put")
	})
	t.Run("no volume yet", func(t *testing.T) {
		s, r := begin(t)
		r.Claim.Status.Phase = corev1.ClaimPending
		s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	})
	for name, change := range map[string]func(*Replica){
		"its claim is going": func(r *Replica) { r.Claim.DeletionTimestamp = &metav1.Time{Time: now} },
		"its volume is gone": func(r *Replica) { r.Claim.Status.Phase = corev1.ClaimLost },
	} {
		t.Run(name, func(t *testing.T) {
			s, r := begin(t)
			change(r)
			out := s.requirePlan()
			require.True(t, out.Failed)
			require.False(t, out.Gone)
			require.Contains(t, out.Status.Message, "cannot be uploaded to s3://out/")
		})
	}
}

// What pods write while the upload runs, or after it, may not be in it.
func TestUploadIsRepeatedForPodsThatCame(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Put.Status.Conditions, s.InUse = nil, []string{"trainer"}
		out := s.requirePlan("delete job v-a-put")
		require.Contains(t, out.Status.Message, "now there are trainer")
	})
	t.Run("before its end is seen", func(t *testing.T) {
		s, _ := newUpload(t)
		s.InUse = []string{"trainer"}
		require.Empty(t, s.requirePlan("delete job v-a-put").Status.Uploaded)
	})
	t.Run("before anything goes", func(t *testing.T) {
		s, _ := newUpload(t)
		s.recorded(s.requirePlan())
		s.InUse = []string{"trainer"}
		require.Empty(t, s.requirePlan("delete job v-a-put").Status.Uploaded)
	})
}

func TestPodsThatUsedAVolumeSince(t *testing.T) {
	s, _ := newUpload(t)
	pod := func(phase corev1.PodPhase, ended time.Time) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v-a-0"},
			}}}},
			Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(ended)}},
			}}},
		}
	}
	require.True(t, s.consumes(pod(corev1.PodRunning, now.Add(-time.Hour))))
	require.True(t, s.consumes(pod(corev1.PodSucceeded, now)), "since the upload began")
	require.True(t, s.consumes(pod(corev1.PodFailed, now.Add(time.Second))))
	require.False(t, s.consumes(pod(corev1.PodSucceeded, now.Add(-time.Second))))
	s.Put = nil
	require.False(t, s.consumes(pod(corev1.PodSucceeded, now)))
}
