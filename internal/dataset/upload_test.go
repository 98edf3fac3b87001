package dataset

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

func TestUpload(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1
		v.Options["outputURL"] = "s3://out/run-1/"
	})
	r := s.completed(0)
	s.Labelled, s.Wanted, s.Upload = nil, false, true
	s.Consumers = []string{"trainer"}
	out := s.requirePlan()
	require.Contains(t, out.Status.Message, "as soon as no pod uses it; pods that use it: trainer")
	s.Consumers = nil
	out = s.requirePlan("create job v-a-put")
	s.UploadJob = out.Actions[0].Object.(*batchv1.Job)
	args := s.UploadJob.Spec.Template.Spec.Containers[0].Args
	require.Equal(t, []string{"--", "/data", "s3://out/run-1/"}, args[len(args)-3:])
	require.Equal(t, "put", args[0])
	require.Equal(t, flexlvmv1.ReplicaUploading, s.requirePlan().Status.Nodes[0].State)

	// If the upload fails, the volume is kept.
	s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "Because"}}
	s.UploadPod = r.Pod
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "so it is kept")
	s.Owner.Annotations = map[string]string{AnnotationRetry: "1"}
	s.requirePlan("delete job v-a-put")
	s.Owner.Annotations = nil

	// The status records the upload before anything is deleted.
	s.UploadJob.Status.Conditions[0].Type = batchv1.JobComplete
	out = s.requirePlan()
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	s.recorded(out)
	s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
	// The upload's Job is deleted last, wherever the controller is killed.
	r.Job = nil
	s.recorded(s.requirePlan("delete claim v-a-0"))
	r.Claim.DeletionTimestamp = &metav1.Time{Time: now}
	out = s.requirePlan("delete job v-a-put")
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	s.recorded(out)
	s.UploadJob = nil
	s.recorded(s.requirePlan())
	r.Claim = nil
	out = s.requirePlan()
	require.True(t, out.Gone)
	require.Equal(t, "s3://out/run-1/", out.Status.Uploaded)
	// Once the volume is wanted again, that upload no longer counts.
	s.Wanted, s.Upload = true, false
	require.Empty(t, Plan(s.Observed).Status.Uploaded)
}

// newUpload returns a stage whose volume consumers have written to. It is being released, and the Job that
// uploads it has succeeded.
func newUpload(t *testing.T) (*stage, *Replica) {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1
		v.Options["outputURL"] = "s3://out/"
	})
	s.Owner.Generation = 2
	r := s.completed(0)
	s.Labelled, s.Wanted, s.Upload = nil, false, true
	s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
	s.UploadJob.CreationTimestamp = metav1.NewTime(now)
	s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	return s, r
}

// An earlier upload does not count: it lacks what was written since.
func TestUploadOfEarlierIsNotBelieved(t *testing.T) {
	t.Run("wanted again", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Owner.Generation, s.Wanted, s.Upload, s.Labelled = 3, true, false, []string{"node-0"}
		s.requirePlan("delete job v-a-put")
	})
	t.Run("wanted again, and released again", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Owner.Generation = 4
		out := s.requirePlan("delete job v-a-put")
		require.Empty(t, out.Status.Uploaded)
	})
	t.Run("that is in the status", func(t *testing.T) {
		s, _ := newUpload(t)
		s.recorded(s.requirePlan())
		s.Owner.Generation, s.UploadJob = 4, nil
		s.requirePlan("create job v-a-put")
	})
	t.Run("of another claim", func(t *testing.T) {
		s, r := newUpload(t)
		r.Claim.UID = "another"
		s.requirePlan("delete job v-a-put")
	})
	t.Run("elsewhere", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Source.OutputURL = "s3://other/"
		s.requirePlan("delete job v-a-put")
	})
}

// A pod may have written and be gone while no controller listed pods: an upload that had begun before may lack
// that, so it is repeated.
func TestUploadOfAnEarlierControllerIsNotBelieved(t *testing.T) {
	for name, recorded := range map[string]bool{"before its end was seen": false, "that is in the status": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := newUpload(t)
			if recorded {
				s.recorded(s.requirePlan())
			}
			ended := s.UploadJob.Status.Conditions
			s.Watched = now.Add(time.Second)
			s.UploadJob.Status.Conditions = nil
			s.requirePlan() // the running upload is not aborted
			s.UploadJob.Status.Conditions = ended
			out := s.requirePlan("delete job v-a-put")
			require.Empty(t, out.Status.Uploaded)
			require.Contains(t, out.Status.Message, "because pods were not observed for a while since the last upload began")
			s.recorded(out)
			s.UploadJob = nil
			s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
			s.UploadJob.Status.Conditions = ended
			out = s.requirePlan() // the second upload counts
			require.Equal(t, "s3://out/", out.Status.Uploaded)
			s.recorded(out)
			s.requirePlan("delete job v-a-0", "delete claim v-a-0")
		})
	}
	t.Run("of what is only read", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["outputURL"] = 1, "s3://out/" })
		s.completed(0)
		s.Readers, s.Labelled, s.Wanted, s.Upload = Readers{}, nil, false, true
		s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
		s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		s.Watched = now.Add(time.Second)
		require.Equal(t, "s3://out/", s.requirePlan().Status.Uploaded)
	})
}

func TestRefresh(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "10m" })
	r := s.completed(0)
	out := s.requirePlan()
	require.Less(t, out.RequeueAfter, time.Minute)
	s.Now = now.Add(10 * time.Minute)
	s.requirePlan("delete job v-a-0")
	r.Job = nil
	out = s.requirePlan("create job v-a-0")
	require.Contains(t, out.Actions[0].Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args, "--sync")
	// A failed refresh keeps the replica as it is.
	r.Job = out.Actions[0].Object.(*batchv1.Job)
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "Because", LastTransitionTime: metav1.NewTime(s.Now)}}
	out = s.requirePlan()
	require.False(t, out.Failed)
	require.EqualValues(t, 1, out.Loaded)
	require.Contains(t, out.Status.Nodes[0].Message, "its last refresh failed")
}

// uploadedRig returns a rig with a volume that is being released and whose status records its upload. Nothing
// of it is deleted yet.
func uploadedRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	v := volumeOf(flexlvmv1.SourceS3Dev, 1, s3Options(options{"outputURL": "s3://out/"}))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	vm = r.get()
	vm.Spec.State = flexlvmv1.StateCompleted
	require.NoError(t, r.client.Update(t.Context(), vm))
	for tries := 0; len(r.get().Status.Volumes) == 0 || r.get().Status.Volumes[0].Uploaded == ""; tries++ {
		require.Less(t, tries, 8, "%+v", r.get().Status)
		require.NoError(t, r.look())
	}
	require.Equal(t, []string{"create v-a-put"}, r.done)
	r.done = nil
	return r
}

// A pod may have written and be gone while pods could not be listed: after a long pause, an upload that had
// begun before is repeated.
func TestUploadBeforeAPauseIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration
		want  string
	}{
		"a short one": {maxListGap / 2, "v-a-0"},
		"a long one":  {2 * maxListGap, "v-a-put"},
	} {
		t.Run(name, func(t *testing.T) {
			r := uploadedRig(t)
			r.fail = func(verb string, object any) error {
				if _, is := object.(*corev1.PodList); is && verb == "list" {
					return errors.New("the API server is away")
				}
				return nil
			}
			require.Error(t, r.look())
			r.fail, r.now = nil, func() time.Time { return time.Now().Add(c.pause) }
			require.NoError(t, r.look())
			require.NotEmpty(t, r.deleted())
			require.Equal(t, c.want, r.deleted()[0])
			for range 12 { // the release completes
				require.NoError(t, r.look())
			}
			require.Equal(t, flexlvmv1.StateCompleted, r.get().Status.State)
		})
	}
}

// A pod that is seen before the claim goes keeps the claim that it may write to, and the upload is repeated, even if the list
// that showed the pod then failed, and the pod is gone at the next attempt.
func TestPodThatComesBeforeTheClaimGoes(t *testing.T) {
	for name, c := range map[string]struct {
		list        int // the list that shows the pod: 1 is the plan's, 2 is that right before the deletion
		fails, goes bool
	}{
		"after the plan was computed":                                   {list: 2},
		"after the plan was computed, and goes":                         {list: 2, goes: true},
		"after the plan was computed, the list fails, and it goes":      {list: 2, fails: true, goes: true},
		"before the plan was computed, but the list fails, and it goes": {list: 1, fails: true, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := uploadedRig(t)
			lists, pod := 0, podOf("v-a-0")
			r.Pods = func(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
				if lists++; lists != c.list {
					return r.pods(ctx, namespace, each)
				}
				require.NoError(t, r.client.Create(ctx, pod))
				require.NoError(t, r.pods(ctx, namespace, each))
				if c.fails {
					return errors.New("the API server is away")
				}
				return nil
			}
			require.Equal(t, c.fails, r.look() != nil)
			require.Equal(t, c.list, lists)
			require.Empty(t, r.deleted())
			if c.goes {
				require.NoError(t, r.client.Delete(t.Context(), pod))
				r.done = nil
			}
			require.NoError(t, r.look())
			require.Equal(t, []string{"v-a-put"}, r.deleted())
		})
	}
}

// A pod was seen, but neither could the upload's Job be deleted nor the status be written. Although the pod is gone at
// the next attempt, the upload is repeated.
func TestPodThatIsSeenWhileNothingCanBeWritten(t *testing.T) {
	r := uploadedRig(t)
	pod := podOf("v-a-0")
	require.NoError(t, r.client.Create(t.Context(), pod))
	r.fail = func(verb string, _ any) error {
		if verb == "get" || verb == "list" {
			return nil
		}
		return errors.New("the API server is read-only")
	}
	require.Error(t, r.look())
	r.fail = nil
	require.NoError(t, r.client.Delete(t.Context(), pod))
	r.done = nil
	require.NoError(t, r.look())
	require.Equal(t, []string{"v-a-put"}, r.deleted())
}

// podOf returns a pod that uses a claim.
func podOf(claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "writer"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
	}}}}
}
