package dataset

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// newMirror returns a stage with a loaded volume with resync, and its running mirror.
func newMirror(t *testing.T) (*stage, *Replica) {
	t.Helper()
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["resync"] = 1, "True" })
	r := s.completed(0)
	s.requirePlan("delete job v-a-0")
	r.Job = nil
	job := s.requirePlan("create job v-a-0").Actions[0].Object.(*batchv1.Job)
	r.Job, r.Pod = job, &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	r.Report = &protocol.Status{ID: "claim-0", Run: "r1", State: protocol.StateMirroring, FilesDone: 3, FilesTotal: 3, BytesDone: 30, BytesTotal: 30, Passes: 7}
	return s, r
}

// resync has VCK's meaning: consumers write, and their changes are uploaded to the source.
func TestResyncUploads(t *testing.T) {
	s, r := newMirror(t)
	require.Equal(t, replica.Writable, r.Claim.Annotations[replica.AnnotationWritable])
	args := r.Job.Spec.Template.Spec.Containers[0].Args
	require.Equal(t, []string{"mirror", "--id=claim-0"}, args[:2])
	require.Equal(t, []string{"--back", "--", "/data", "s3://b/p/"}, args[len(args)-4:])
	require.Nil(t, r.Job.Spec.PodFailurePolicy, "it is retried for ever")
	out := s.requirePlan()
	require.Equal(t, "v-a-0", out.Status.VolumeSource.PersistentVolumeClaim.ClaimName)
	require.False(t, out.Status.VolumeSource.PersistentVolumeClaim.ReadOnly)
	require.Equal(t, &flexlvmv1.UploadLag{To: "s3://b/p/", Known: true}, out.Status.Upload)
	require.Equal(t, flexlvmv1.MessageSuccess, out.Status.Message)
	require.Empty(t, out.Advice)

	r.Report.FilesDone, r.Report.BytesDone, r.Report.Message = 1, 10, "access denied"
	out = s.requirePlan()
	require.Equal(t, &flexlvmv1.UploadLag{To: "s3://b/p/", Known: true, Files: 2, Bytes: 20, Message: "access denied"}, out.Status.Upload)
	s.recorded(out)
	r.Report = nil
	require.Equal(t, out.Status.Upload, s.requirePlan().Status.Upload, "a mirror that is slow to answer is as far as it was")
	r.Report = &protocol.Status{ID: "another", State: protocol.StateMirroring}
	require.Equal(t, out.Status.Upload, s.requirePlan().Status.Upload, "another pod has the address by now")

	// A mirror that has ended is replaced. An edit of the source is not followed.
	r.Job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	s.requirePlan("delete job v-a-0")
	r.Job.Status.Conditions = nil
	s.Source.URL = "s3://b/q/"
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "it holds what the volume asked for earlier; it is kept")
	// An outputURL is another target.
	s, _ = newMirror(t)
	s.Source.OutputURL = "s3://out/"
	s.requirePlan("delete job v-a-0")
	require.Equal(t, []string{"--", "/data", "s3://out/"}, s.task(0, s.Replicas[0].Claim).target())
}

// A mirror never ends by itself, so an upgrade replaces it, once. The mirror of a claim that is being deleted
// is not replaced: no other pod could mount the claim.
func TestMirrorIsReplacedByThatOfAnotherRelease(t *testing.T) {
	for name, upgrade := range map[string]func(*stage, *Replica){
		"another image": func(s *stage, _ *Replica) { s.Image = "newer" },
		"of a release whose Jobs did not say their image": func(s *stage, r *Replica) {
			r.Job.Annotations[annotationAttempt] = digest(s.task(0, r.Claim).attempt, roleMirror)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newMirror(t)
			s.requirePlan()
			upgrade(s, r)
			s.requirePlan("delete job v-a-0")
			require.True(t, isHeld(r.Claim))
			r.Job.DeletionTimestamp = &metav1.Time{Time: now}
			s.requirePlan() // its pod ends first
			r.Job, r.Pod, r.Report = nil, nil, nil
			r.Job = s.requirePlan("create job v-a-0").Actions[0].Object.(*batchv1.Job)
			require.Equal(t, s.Image, r.Job.Spec.Template.Spec.Containers[0].Image)
			s.requirePlan()
		})
		t.Run(name+", of a claim that is being deleted", func(t *testing.T) {
			s, r := newMirror(t)
			upgrade(s, r)
			r.Claim.DeletionTimestamp, s.Labelled = &metav1.Time{Time: now}, nil
			out := s.requirePlan("annotate claim v-a-0")
			require.Equal(t, map[string]string{annotationFinal: "r1/7"}, out.Actions[0].Annotations)
			r.Claim.Annotations[annotationFinal] = "r1/7"
			s.requirePlan()
			r.Report.Passes, r.Report.Final = 9, "r1/7"
			s.requirePlan("remove finalizer claim v-a-0", "delete job v-a-0")
		})
	}
	t.Run("whose claim is deleted meanwhile", func(t *testing.T) {
		s, r := newMirror(t)
		s.Image, s.Labelled = "newer", nil
		r.Job, r.Pod, r.Report = nil, nil, nil
		r.Claim.DeletionTimestamp = &metav1.Time{Time: now}
		out := s.requirePlan() // the finalizer stays
		require.True(t, out.Failed)
		require.Contains(t, out.Status.Message, "its content may not be uploaded")
	})
}

// Nothing is deleted before the whole content was uploaded and verified once more while no pod used it.
func TestMirrorIsReleasedLast(t *testing.T) {
	s, r := newMirror(t)
	s.Wanted, s.Upload, s.Labelled = false, true, nil
	s.Consumers = []string{"trainer"}
	require.Contains(t, s.requirePlan().Status.Message, "as soon as no pod uses it; pods that use it: trainer")
	s.Consumers = nil
	s.requirePlan("delete job v-a-0")
	r.Job, r.Pod, r.Report = nil, nil, nil
	s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
	args := s.UploadJob.Spec.Template.Spec.Containers[0].Args
	require.Equal(t, []string{"--back", "--", "/data", "s3://b/p/"}, args[len(args)-4:])
	s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	out := s.requirePlan()
	require.Equal(t, "s3://b/p/", out.Status.Uploaded)
	s.recorded(out)
	s.requirePlan("remove finalizer claim v-a-0", "delete claim v-a-0")
	t.Run("killed in between", func(*testing.T) {
		r.Claim.Finalizers = nil
		s.requirePlan("delete claim v-a-0")
	})
	t.Run("deleted by somebody meanwhile", func(*testing.T) {
		r.Claim.Finalizers, r.Claim.DeletionTimestamp = []string{finalizerMirror}, &metav1.Time{Time: now}
		require.Equal(t, "s3://b/p/", s.requirePlan("remove finalizer claim v-a-0").Status.Uploaded)
		// A pod may have written and be gone where the upload's Job does not show that pods were observed since.
		for name, change := range map[string]func(){
			"the controller was restarted":              func() { s.Watched = now.Add(time.Second) },
			"the upload's Job is gone":                  func() { s.UploadJob = nil },
			"the upload is repeated, and has not ended": func() { s.UploadJob.Status.Conditions = nil },
		} {
			t.Run(name, func(t *testing.T) {
				observed, job := s.Observed, s.UploadJob.DeepCopy()
				defer func() { s.Observed, s.UploadJob = observed, job }()
				change()
				out := s.requirePlan()
				require.True(t, out.Failed)
				require.Contains(t, out.Status.Message, "claim v-a-0 is being deleted, its content may not be uploaded")
			})
		}
	})
	t.Run("it holds other data than the spec says", func(t *testing.T) {
		s, r := newMirror(t)
		s.Wanted, s.Upload, s.Labelled, r.Job, s.Source.URL = false, true, nil, nil, "s3://b/q/"
		out := s.requirePlan()
		require.True(t, out.Failed)
		require.Contains(t, out.Status.Message, "cannot be uploaded to s3://b/q/, so it is kept")
	})
	t.Run("the spec does not name it", func(t *testing.T) {
		s, _ := newMirror(t)
		s.Config, s.Source, s.Wanted, s.Labelled = flexlvmv1.VolumeConfig{ID: "a"}, Source{}, false, nil
		out := s.requirePlan()
		require.True(t, out.Failed)
		require.False(t, out.Gone)
		require.Contains(t, out.Status.Message, "no longer says where to upload the content of claim v-a-0")
	})
}

// A claim that its user deletes stays until its content is uploaded. Only the running mirror can do that.
func TestMirroredClaimIsDeleted(t *testing.T) {
	s, r := newMirror(t)
	s.Labelled = nil
	r.Claim.DeletionTimestamp = &metav1.Time{Time: now}
	s.Consumers = []string{"trainer"}
	require.Contains(t, s.requirePlan().Status.Message, "pods that use it: trainer")
	s.Consumers = nil
	out := s.requirePlan("annotate claim v-a-0")
	require.Equal(t, map[string]string{annotationFinal: "r1/7"}, out.Actions[0].Annotations)
	r.Claim.Annotations[annotationFinal] = "r1/7"
	s.requirePlan()
	r.Report.Passes = 8 // this pass may have begun before the last pod ended
	s.requirePlan()
	r.Report.Passes = 9
	s.requirePlan() // the mirror has not compared all files since it was asked to
	r.Report.Final = "r1/7"
	s.requirePlan("remove finalizer claim v-a-0", "delete job v-a-0")
	for name, change := range map[string]func(*protocol.Status){
		"another process":     func(p *protocol.Status) { p.Run = "r2" },
		"another pod":         func(p *protocol.Status) { p.ID = "claim-1" },
		"of an earlier time":  func(p *protocol.Status) { p.Final = "r1/3" },
		"something is behind": func(p *protocol.Status) { p.FilesDone = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			report := *r.Report
			defer func() { *r.Report = report }()
			change(r.Report)
			words, _ := s.plan()
			require.NotContains(t, words, "remove finalizer claim v-a-0")
		})
	}
	// If a pod uses the claim again, the final upload starts over.
	s.Consumers = []string{"trainer"}
	out = s.requirePlan("annotate claim v-a-0")
	require.Equal(t, map[string]string{annotationFinal: ""}, out.Actions[0].Annotations)
	s.Consumers, r.Pod.Status.Phase = nil, corev1.PodFailed
	out = s.requirePlan()
	require.True(t, out.Failed)
	require.Contains(t, out.Status.Message, "claim v-a-0 is being deleted, its content may not be uploaded")
}

// A replica that was created without resync is kept when resync is set, and nothing is uploaded or fetched, whatever its
// claim records. The same for a mirrored one when resync is removed.
func TestResyncIsEdited(t *testing.T) {
	for name, c := range map[string]struct {
		before, after flexlvmv1.OptionValue
	}{
		"set":     {"", "true"},
		"removed": {"true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(resync flexlvmv1.OptionValue) *stage {
				return newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["resync"] = 1, resync })
			}
			s, edited := with(c.before), with(c.after)
			delete(s.completed(0).Claim.Annotations, annotationResync)
			s.Source, s.Config = edited.Source, edited.Config
			got, out := s.plan()
			require.Equal(t, "unlabel node-0", got[0])
			require.NotRegexp(t, "delete| job |v-a-0", strings.Join(got, "; "))
			require.Zero(t, out.Status.ReadyReplicas)
			require.True(t, out.Failed)
			require.Contains(t, out.Status.Message, "it is kept")
		})
	}
}

// Whatever blocks the upload of a mirrored volume may do so forever, so the status says how to give up the
// content.
func TestMirrorThatNeverLoadedIsReleased(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["resync"] = 1, "true" })
	s.claimed(0)
	s.Wanted, s.Upload = false, true
	s.UploadJob = s.requirePlan("create job v-a-put").Actions[0].Object.(*batchv1.Job)
	s.UploadRefused = "secret s is not there"
	const wayOut = "to give its content up, delete claim v-a-0 and remove the finalizer flexlvm.io/mirror from it"
	require.Contains(t, s.requirePlan().Status.Message, wayOut)
	s.UploadRefused = ""
	s.UploadPod = &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "denied"}}}}}}
	s.UploadJob.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "Because"}}
	require.Contains(t, s.requirePlan().Status.Message, wayOut)
}

// A mirror is asked after pods are listed: an earlier report would not cover what a pod wrote just before it
// ended.
func TestMirrorIsAskedAfterPodsAreListed(t *testing.T) {
	r := newRig(t)
	v := volumeOf(flexlvmv1.SourceS3, 1, s3Options(options{"resync": "true"}))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	job := &batchv1.Job{}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a-0"}, job))
	r.endedPod(job)
	pod := &corev1.Pod{}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a-0-pod"}, pod))
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "10.0.0.1"
	require.NoError(t, r.client.Status().Update(t.Context(), pod))
	var order []string
	r.live = interceptor.NewClient(r.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		if _, pods := list.(*corev1.PodList); pods {
			order = append(order, "list")
		}
		return c.List(ctx, list, o...)
	}})
	r.Progress = func(context.Context, string, string) *protocol.Status {
		order = append(order, "ask")
		return nil
	}
	require.NoError(t, r.client.Delete(t.Context(), r.get()))
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "v"}})
	require.NoError(t, err)
	require.Equal(t, []string{"list", "ask"}, order)
}

// If a VolumeManager is deleted, the content of its mirrored volume is uploaded first.
func TestReconcileMirror(t *testing.T) {
	r := newRig(t)
	v := volumeOf(flexlvmv1.SourceS3, 1, s3Options(options{"resync": "true"}))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	r.Progress = func(context.Context, string, string) *protocol.Status { return nil }
	require.NoError(t, r.client.Delete(t.Context(), r.get()))
	for range 16 {
		require.NoError(t, r.look())
	}
	var order []string
	for _, d := range r.done {
		if d == "create v-a-put" || d == "delete v-a-0" {
			order = append(order, d)
		}
	}
	require.Equal(t, "create v-a-put", order[0], "%v", r.done)
	require.Contains(t, order, "delete v-a-0")
	claims := &corev1.PersistentVolumeClaimList{}
	require.NoError(t, r.client.List(t.Context(), claims))
	require.Empty(t, claims.Items)
}
