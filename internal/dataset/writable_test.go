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
	"github.com/flexlvm/flexlvm/internal/volume"
)

func newWritable(t *testing.T) *stage {
	t.Helper()
	return newStage(t, func(v *flexlvmv1.VolumeConfig) { v.SourceType, v.Replicas = flexlvmv1.SourceS3Dev, 1 })
}

// If a volume that consumers may have written to differs from the spec, it is kept and stays usable, and the
// status reports the difference.
func TestWhatConsumersWroteIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stage, *Replica)
		why    string
		usable int32
	}{
		"another source":  {func(s *stage, _ *Replica) { s.Source.URL = "s3://b/q/" }, "it holds what the volume asked for earlier", 1},
		"a newer flexlvm": {func(_ *stage, r *Replica) { r.Claim.Annotations[annotationLoad] = "of another digest" }, "it holds what the volume asked for earlier", 1},
		"its node lost its labels": {func(s *stage, r *Replica) {
			s.NotMatching["node-0"], r.Claim.Annotations[annotationAffinity] = true, affinityDigest(requiredAffinity(labelExists("pool")))
		}, "its node is no longer among those", 1},
		"one too many": {func(s *stage, _ *Replica) { s.Config.Replicas = 0 }, "there are more replicas than the volume asks for", 1},
		"no PersistentVolume": {func(s *stage, r *Replica) {
			r.Claim.Status.Phase, r.Volume, r.Node, s.Labelled = corev1.ClaimLost, nil, "", nil
		}, "its PersistentVolume is gone", 0},
		"told to go": {func(_ *stage, r *Replica) { r.Volume.Annotations[replica.AnnotationEvictable] = "2026-11-21T16:00:10Z" }, "it was evicted", 1},
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

// A volume that was dropped from the spec is named again with a read-only source: the claim that consumers
// wrote to is not used as a replica of that source, and is kept.
func TestKeptUnderAnotherSourceType(t *testing.T) {
	begin := func(t *testing.T) *stage {
		s := newWritable(t)
		s.Source.Type, s.Source.Eviction, s.Config.Replicas = flexlvmv1.SourceS3, volume.EvictLRU, 2
		s.Readers.Claim = readersClaim(s.Owner, s.Config, s.Source)
		s.Readers.Volume = readersVolume(s.Owner, s.Config, s.own(), s.Cluster)
		return s
	}
	old := func(r *Replica) *Replica {
		r.Claim.Annotations[replica.AnnotationWritable] = replica.Writable
		r.Volume.Annotations[replica.AnnotationEviction] = string(volume.EvictNever)
		return r
	}
	t.Run("complete", func(t *testing.T) {
		s := begin(t)
		r := old(s.completed(0))
		s.completed(1)
		out := s.requirePlan("unlabel node-0")
		require.EqualValues(t, 1, out.Status.ReadyReplicas)
		require.EqualValues(t, 1, out.Loaded)
		require.True(t, out.Failed)
		require.Equal(t, flexlvmv1.ReplicaFailed, out.Status.Nodes[0].State)
		require.Equal(t, "v-a-0: it was created for another sourceType, so no consumer sees it; it is kept, as consumers may have written to it: "+
			"remove the volume from the spec and add it again with its old sourceType, or make another volume, or delete claim v-a-0 to give up what is in it", out.Status.Message)
		// If its user deletes the claim, the source is loaded instead, after the old Job is deleted.
		r.Claim.DeletionTimestamp, s.Labelled = &metav1.Time{Time: now}, []string{"node-1"}
		s.requirePlan("delete job v-a-0")
	})
	t.Run("before it is complete", func(t *testing.T) {
		s := begin(t)
		old(s.claimed(0))
		s.completed(1)
		out := s.requirePlan() // and nothing is loaded over it
		require.True(t, out.Failed)
		require.Contains(t, out.Status.Message, "it was created for another sourceType")
	})
	t.Run("to be uploaded and released", func(t *testing.T) {
		s := begin(t)
		old(s.claimed(0))
		s.completed(1)
		s.Source.OutputURL, s.Wanted, s.Upload, s.Labelled = "s3://out/", false, true, nil
		job := s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
		require.Equal(t, "v-a-0", job.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, "what is nowhere else comes first")
	})
}

// The reverse: a replica of a read-only source is not shown to consumers that write, because its claim is not
// marked to be kept.
func TestReplicaIsNotMadeWritable(t *testing.T) {
	t.Run("complete", func(t *testing.T) {
		s := newWritable(t)
		r := s.completed(0)
		delete(r.Claim.Annotations, replica.AnnotationWritable)
		out := s.requirePlan("unlabel node-0")
		require.Zero(t, out.Status.ReadyReplicas)
		require.True(t, out.Failed)
		require.Contains(t, out.Status.Message, "it was created for another sourceType, so no consumer sees it")
		require.Contains(t, out.Status.Message, "or delete claim v-a-0")
	})
	t.Run("before it is complete", func(t *testing.T) {
		s := newWritable(t)
		delete(s.claimed(0).Claim.Annotations, replica.AnnotationWritable)
		out := s.requirePlan() // and nothing is loaded over it
		require.True(t, out.Failed)
		require.Contains(t, out.Status.Message, "it was created for another sourceType")
	})
}

// The spec no longer names the volume, so whether its content was to be uploaded is unknown: the claim is kept.
func TestDroppedVolumeIsKept(t *testing.T) {
	s := newWritable(t)
	r := s.completed(0)
	s.Config, s.Source, s.Wanted, s.Dropped, s.Labelled = flexlvmv1.VolumeConfig{ID: "a"}, Source{}, false, true, nil
	out := s.requirePlan()
	require.False(t, out.Gone)
	require.Contains(t, out.Status.Message, "is no longer in the spec; claim v-a-0 is kept")
	// Deleting the VolumeManager, or the claim, releases the volume.
	s.Dropped = false
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
	s.Dropped, r.Claim.DeletionTimestamp = true, &metav1.Time{Time: now}
	s.requirePlan("delete job v-a-0")
}

// A load that failed permanently does not delete a claim that consumers may have written to.
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

// The visit that lets a writable volume grow only mounts it, and loads nothing over its content.
func TestVisitOfWritableLoadsNothing(t *testing.T) {
	s := newWritable(t)
	r := s.completed(0)
	s.Source.Capacity = resource.MustParse("2Gi")
	r.Claim.Spec.Resources, r.Job = storageRequest(s.Source.Capacity), nil
	out := s.requirePlan("create job v-a-0")
	visit := out.Actions[0].Object.(*batchv1.Job)
	require.Equal(t, "prepare", visit.Spec.Template.Spec.Containers[0].Args[0])

	// The status keeps the counts of the load.
	visit.UID = "visit"
	visit.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	r.Job, r.Pod.Status.ContainerStatuses[0].State.Terminated.Message = visit, `{"state":"complete","filesDone":0}`
	r.Claim.Status.Capacity = r.Claim.Spec.Resources.Requests
	out = s.requirePlan("annotate claim v-a-0")
	require.Equal(t, map[string]string{annotationVisit: "visit"}, out.Actions[0].Annotations)
	r.Claim.Annotations[annotationVisit] = "visit"
	require.EqualValues(t, 3, s.requirePlan().Status.Nodes[0].Progress.Files)
}

// Writable volumes that are not complete are uploaded, too: consumers may already have written to them.
func TestUploadBeforeItIsComplete(t *testing.T) {
	begin := func(t *testing.T) (*stage, *Replica) {
		s, _ := newUpload(t)
		s.UploadJob = nil
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

// An upload may miss what pods write while it runs or afterwards, so it is repeated if a pod uses the volume.
func TestUploadIsRepeatedForPodsThatCame(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) {
		s, _ := newUpload(t)
		s.UploadJob.Status.Conditions, s.Consumers = nil, []string{"trainer"}
		out := s.requirePlan("delete job v-a-put")
		require.Contains(t, out.Status.Message, "pods that use it: trainer")
	})
	t.Run("before its end is seen", func(t *testing.T) {
		s, _ := newUpload(t)
		s.Consumers = []string{"trainer"}
		require.Empty(t, s.requirePlan("delete job v-a-put").Status.Uploaded)
	})
	t.Run("before anything goes", func(t *testing.T) {
		s, _ := newUpload(t)
		s.recorded(s.requirePlan())
		s.Consumers = []string{"trainer"}
		require.Empty(t, s.requirePlan("delete job v-a-put").Status.Uploaded)
	})
}

// A pod may have written and ended while no controller ran. Only the upload's Job records since when pods may
// have written, so without the Job the upload in the status does not count.
func TestUploadIsNotBelievedWithoutItsJob(t *testing.T) {
	for name, change := range map[string]func(*stage){
		"it is gone":  func(s *stage) { s.UploadJob = nil },
		"it is going": func(s *stage) { s.UploadJob.DeletionTimestamp = &metav1.Time{Time: now} },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newUpload(t)
			s.recorded(s.requirePlan())
			change(s)
			out := Plan(s.Observed)
			require.Empty(t, out.Status.Uploaded)
			s.recorded(out)
			s.UploadJob = nil
			s.requirePlan("create job v-a-put")
		})
	}
}

// Consumers that only read change nothing, so a replica that is released later than the others is not uploaded
// again.
func TestUploadOfReadReplicas(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Options["outputURL"] = "s3://out/" })
	r := s.completed(0)
	s.completed(1)
	s.Readers, s.Labelled, s.Wanted, s.Upload = Readers{}, nil, false, true
	s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
	s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	s.recorded(s.requirePlan())
	s.recorded(s.requirePlan("delete job v-a-put", "delete job v-a-0", "delete claim v-a-0", "delete job v-a-1", "delete claim v-a-1"))
	s.UploadJob, r.Job, r.Claim.DeletionTimestamp = nil, nil, &metav1.Time{Time: now} // the controller is killed before the next action
	out := s.requirePlan("delete job v-a-1", "delete claim v-a-1")
	require.Equal(t, "s3://out/", out.Status.Uploaded)
}

// If no replica is complete on Completed, nothing is lost, and the status reports that nothing was uploaded.
func TestNothingToUpload(t *testing.T) {
	const message = "released; nothing was uploaded to s3://out/, because no complete replica holds what the volume asks for; the source still has its data"
	begin := func(t *testing.T) *stage {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["outputURL"] = 1, "s3://out/" })
		s.Owner.Generation, s.Owner.Status.State = 2, flexlvmv1.StateRunning
		s.Readers, s.Wanted, s.Upload = Readers{}, false, true
		return s
	}
	t.Run("while it loads", func(t *testing.T) {
		s := begin(t)
		r := s.loading(0, corev1.PodRunning)
		s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
		r.Claim, r.Job = nil, nil
		out := s.requirePlan()
		require.True(t, out.Gone)
		require.Equal(t, message, out.Status.Message)
		// The message stays in the status, also after an edit.
		s.recorded(out)
		s.Owner.Status.State, s.Owner.Generation = flexlvmv1.StateCompleted, 3
		require.Equal(t, message, s.requirePlan().Status.Message)
	})
	t.Run("before it heals", func(t *testing.T) {
		s := begin(t)
		require.Equal(t, message, s.requirePlan().Status.Message)
	})
	t.Run("what it holds is of another source", func(t *testing.T) {
		s := begin(t)
		r := s.completed(0)
		s.Labelled, s.Source.URL = nil, "s3://another/"
		s.recorded(s.requirePlan("delete job v-a-0", "delete claim v-a-0"))
		r.Claim, r.Job = nil, nil
		require.Equal(t, message, s.requirePlan().Status.Message)
	})
	t.Run("while its replica is evicted", func(t *testing.T) {
		s := begin(t)
		r := s.completed(0)
		r.Claim.DeletionTimestamp, r.Job, s.Labelled = &metav1.Time{Time: now}, nil, nil
		s.recorded(s.requirePlan())
		r.Claim = nil
		require.Equal(t, message, s.requirePlan().Status.Message)
	})
	t.Run("no volume was made", func(t *testing.T) {
		s := begin(t)
		s.Source.Type = flexlvmv1.SourceAeon
		require.Equal(t, "released; nothing was uploaded to s3://out/, because there was no volume", s.requirePlan().Status.Message)
	})
	t.Run("it was uploaded, and edited afterwards", func(t *testing.T) {
		s := begin(t)
		s.Owner.Status.Volumes, s.Owner.Status.ObservedGeneration = []flexlvmv1.VolumeStatus{{ID: "a", Uploaded: "s3://out/"}}, 1
		out := s.requirePlan()
		require.Equal(t, "released", out.Status.Message)
		require.Equal(t, "s3://out/", out.Status.Uploaded)
	})
	t.Run("it was released by an earlier flexlvm", func(t *testing.T) {
		s := begin(t)
		s.Owner.Status.State = flexlvmv1.StateCompleted
		require.Equal(t, "released", s.requirePlan().Status.Message)
	})
	t.Run("nobody asked for it", func(t *testing.T) {
		s := begin(t)
		s.Upload = false
		require.Equal(t, "released", s.requirePlan().Status.Message)
	})
}

// The status reports why an upload makes no progress.
func TestUploadThatWaits(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"message":"the server is away"}`}}
	pulled := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"no pod yet": {nil, "is uploaded to s3://out/; its loader's pod does not exist yet"},
		"no node": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"},
		}}}, "is uploaded to s3://out/; its loader cannot be scheduled: 0/2 nodes are available"},
		"no image": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: loader, State: pulled}}}},
			"is uploaded to s3://out/; its loader is not running yet: ImagePullBackOff: no such image"},
		"no server": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: loader, State: ended}}}},
			"is uploaded to s3://out/; its loader is retried; the last time: the server is away"},
		"it works": {&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}, "is uploaded to s3://out/"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newUpload(t)
			s.UploadJob.Status.Conditions, s.UploadPod = nil, c.pod
			out := s.requirePlan()
			require.False(t, out.Failed)
			require.Equal(t, c.want, out.Status.Message)
			require.Equal(t, flexlvmv1.ReplicaUploading, out.Status.Nodes[0].State)
		})
	}
}

func TestPodsThatUsedAVolumeSince(t *testing.T) {
	s, _ := newUpload(t)
	pod := func(phase corev1.PodPhase, ended time.Time) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
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
	s.UploadJob = nil
	require.False(t, s.consumes(pod(corev1.PodSucceeded, now)))
}
