package dataset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// podlessBed is a reconciler that observes a stage whose Job has no pod.
type podlessBed struct {
	*stage
	*reconciler
	rep     *Replica
	refused string
	live    []corev1.Pod // pods of the API server
	err     error        // of their list
}

// newPodlessBed returns a bed whose Job has begun and never had a pod.
func newPodlessBed(t *testing.T, replicas int) *podlessBed {
	t.Helper()
	b := &podlessBed{stage: newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = flexlvmv1.ReplicaCount(replicas) })}
	b.Fitting = fitting(replicas)
	for i := range replicas {
		b.rep = b.loading(i, corev1.PodPending)
		b.rep.Pod, b.rep.Job.UID = nil, types.UID(fmt.Sprintf("job-%d", i))
		b.rep.Job.Status.StartTime = &metav1.Time{Time: now}
	}
	b.reconciler = &reconciler{
		Config: Config{
			Refused: func(context.Context, *batchv1.Job) string { return b.refused },
			Pods: func(_ context.Context, _ string, each func(*corev1.Pod)) error {
				for i := range b.live {
					each(&b.live[i])
				}
				return b.err
			},
		},
		podless: podLists{gap: maxPodlessGap},
	}
	return b
}

// look observes the Jobs at a time.
func (b *podlessBed) look(at time.Time) bool {
	b.Now = at
	b.addRefusals(b.Context(), b.Observed)
	return b.rep.Forgotten
}

// looks observes the Jobs every minute for less than ten minutes.
func (b *podlessBed) looks() {
	b.Helper()
	for at := range 10 {
		require.False(b, b.look(now.Add(time.Duration(at)*time.Minute)))
	}
}

func TestForgottenJob(t *testing.T) {
	one, suspended, manager := int32(1), true, "example.org/manager"
	for name, c := range map[string]struct {
		change func(*podlessBed)
		after  time.Duration
		want   bool
	}{
		"after ten minutes":  {after: forgottenAfter, want: true},
		"a second earlier":   {after: forgottenAfter - time.Second},
		"refused":            {after: forgottenAfter, change: func(b *podlessBed) { b.refused = "exceeded quota" }},
		"suspended":          {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Spec.Suspend = &suspended }},
		"managed by another": {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Spec.ManagedBy = &manager }},
		"not begun":          {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Status.StartTime = nil }},
		"an active pod":      {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Status.Active = 1 }},
		"a ready pod":        {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Status.Ready = &one }},
		"a pod that ends":    {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Status.Terminating = &one }},
		"a pod that failed":  {after: forgottenAfter, change: func(b *podlessBed) { b.rep.Job.Status.Failed = 1 }},
		"a pod that succeeded": {after: forgottenAfter, change: func(b *podlessBed) {
			b.rep.Job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"pod"}}
		}},
		"a pod that no cache has": {after: forgottenAfter, change: func(b *podlessBed) {
			b.live = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b.rep.Job, batchv1.SchemeGroupVersion.WithKind("Job"))}}}}
		}},
		"a pod of an earlier Job": {after: forgottenAfter, want: true, change: func(b *podlessBed) {
			earlier := b.rep.Job.DeepCopy()
			earlier.UID = "earlier"
			b.live = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(earlier, batchv1.SchemeGroupVersion.WithKind("Job"))}}}}
		}},
		"pods that cannot be listed": {after: forgottenAfter, change: func(b *podlessBed) { b.err = errors.New("timeout") }},
		"a clock that jumps":         {after: 24 * time.Hour},
		"a clock that is set back":   {after: -time.Hour},
		"an API server whose clock is ahead": {after: forgottenAfter, want: true, change: func(b *podlessBed) {
			b.rep.Job.CreationTimestamp = metav1.NewTime(now.Add(time.Hour))
		}},
		"an API server whose clock is behind": {after: forgottenAfter - time.Second, change: func(b *podlessBed) {
			b.rep.Job.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPodlessBed(t, 1)
			if c.change != nil {
				c.change(b)
			}
			b.looks()
			require.Equal(t, c.want, b.look(now.Add(c.after)))
		})
	}
}

// The time without a pod begins again after each pod, and after each pause in which nothing was observed.
func TestForgottenJobThatHadAPod(t *testing.T) {
	b := newPodlessBed(t, 1)
	b.looks()
	b.rep.Pod = &corev1.Pod{}
	require.False(t, b.look(now.Add(9*time.Minute+30*time.Second)))
	b.rep.Pod = nil
	begun := now.Add(9*time.Minute + 40*time.Second)
	for _, after := range []time.Duration{0, 5 * time.Minute, forgottenAfter - time.Second} {
		require.False(t, b.look(begun.Add(after)))
	}
	require.True(t, b.look(begun.Add(forgottenAfter)))

	b = newPodlessBed(t, 1)
	b.looks()
	begun = now.Add(9*time.Minute + maxPodlessGap + time.Second)
	for _, after := range []time.Duration{0, 5 * time.Minute, forgottenAfter - time.Second} {
		require.False(t, b.look(begun.Add(after)))
	}
	require.True(t, b.look(begun.Add(forgottenAfter)))
}

// Only the events of the first maxInFull Jobs are read, so nothing is known about the others.
func TestForgottenJobsOfManyNodes(t *testing.T) {
	b := newPodlessBed(t, maxInFull+1)
	b.looks()
	require.False(t, b.look(now.Add(forgottenAfter)))
	for i := range maxInFull {
		require.True(t, b.Replicas[i].Forgotten, i)
	}
}

// A forgotten Job is found although the API server refuses the pods of many Jobs before it.
func TestForgottenJobBehindRefusedOnes(t *testing.T) {
	b := newPodlessBed(t, maxInFull+1)
	for i := range maxInFull {
		b.Replicas[i].Job.Status.Failed = 1 // it had a pod, whose successor is refused
	}
	b.Refused = func(_ context.Context, job *batchv1.Job) string {
		if job.Status.Failed > 0 {
			return "exceeded quota"
		}
		return ""
	}
	b.looks()
	require.True(t, b.look(now.Add(forgottenAfter)))
	require.Equal(t, "exceeded quota", b.Replicas[0].Refused)
}

// A Job that Kubernetes has forgotten is deleted, whatever it is for. A later plan creates it again.
func TestForgottenJobIsDeleted(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) (*stage, *Replica){
		"load": func(t *testing.T) (*stage, *Replica) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
			return s, s.loading(0, corev1.PodPending)
		},
		"copy": func(t *testing.T) (*stage, *Replica) {
			s := newRack(t, 2)
			s.peerServer(1)
			return s, s.copying(0, 1)
		},
		"visit": func(t *testing.T) (*stage, *Replica) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "10m" })
			r := s.holding(0, "one")
			r.Job = nil
			r.goes(s.requirePlan("create job v-a-0").Actions[0], s.Now, "", "")
			return s, r
		},
		"serve": func(t *testing.T) (*stage, *Replica) {
			s := newRack(t, 2)
			s.claimed(1)
			return s, s.peerServer(0)
		},
		"mirror": newMirror,
	} {
		t.Run(name, func(t *testing.T) {
			s, r := begin(t)
			r.Pod, r.Report = nil, nil
			before, _ := s.plan()
			require.NotContains(t, before, "delete job v-a-0")
			r.Forgotten = true
			words, out := s.plan()
			require.Equal(t, append(before, "delete job v-a-0"), words)
			last := out.Actions[len(out.Actions)-1]
			require.Equal(t, "LoaderForgotten", last.Reason)
			require.Contains(t, last.Message, "Job v-a-0 is deleted")
			r.Job, r.Forgotten = nil, false
			require.Equal(t, "v-a-0", created(s.requirePlan(append(before, "create job v-a-0")...)).Name)
		})
	}
}

func TestForgottenUpload(t *testing.T) {
	s, _ := newUpload(t)
	s.UploadJob.Status.Conditions = nil
	s.requirePlan()
	s.UploadForgotten = true
	require.Equal(t, "LoaderForgotten", s.requirePlan("delete job v-a-put").Actions[0].Reason)
	s.UploadJob, s.UploadForgotten = nil, false
	s.requirePlan("create job v-a-put")
}

// No new pod can mount a claim that is being deleted, so the mirror of such a claim stays. A Job that a plan deletes
// anyway is deleted once.
func TestForgottenJobThatStays(t *testing.T) {
	s, r := newMirror(t)
	r.Claim.Finalizers, r.Claim.DeletionTimestamp = []string{finalizerMirror}, &metav1.Time{Time: now}
	r.Pod, r.Report, r.Forgotten, s.Labelled = nil, nil, true, nil
	s.requirePlan()

	s = newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r = s.loading(0, corev1.PodPending)
	r.Pod, r.Forgotten, s.Wanted = nil, true, false
	s.Readers = Readers{}
	s.requirePlan("delete job v-a-0", "delete claim v-a-0")
}

// newUID returns NAME-uid for the first object of a type and name, and another UID for each of the following.
func (r *rig) newUID(object client.Object) types.UID {
	key := fmt.Sprintf("%T %s", object, object.GetName())
	if r.created[key]++; r.created[key] > 1 {
		return types.UID(fmt.Sprintf("%s-uid-%d", object.GetName(), r.created[key]))
	}
	return types.UID(object.GetName() + "-uid")
}

// Kubernetes creates no pod for the first Job of a name: the next Job of that name loads the replica.
func TestForgottenJobIsReplaced(t *testing.T) {
	r := newRig(t)
	at, events := time.Now(), record.NewFakeRecorder(100)
	r.now, r.Events = func() time.Time { return at }, events
	r.Refused = func(context.Context, *batchv1.Job) string { return "" }
	r.forgets = func(job *batchv1.Job) bool { return job.UID == "v-a-0-uid" }
	r.manager(1)
	for begun := at; at.Sub(begun) < forgottenAfter; at = at.Add(30 * time.Second) {
		require.NoError(t, r.look())
		require.Empty(t, r.deleted())
	}
	for tries := 0; r.get().Status.State != flexlvmv1.StateRunning; tries++ {
		require.Less(t, tries, 20, "%+v", r.get().Status)
		require.LessOrEqual(t, len(r.deleted()), 1, "the second Job is not forgotten")
		require.NoError(t, r.look())
		at = at.Add(30 * time.Second)
	}
	var sent []string
	for len(events.Events) > 0 {
		sent = append(sent, <-events.Events)
	}
	require.Equal(t, 1, strings.Count(strings.Join(sent, "\n"), "Normal LoaderForgotten Job v-a-0 is deleted"), sent)
}
