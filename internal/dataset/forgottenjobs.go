package dataset

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Kubernetes' Job controller records by the names of Jobs, not by their UIDs, which pods it expects to see. If a Job is
// deleted while the controller creates a pod for it, and another Job of that name follows immediately, the controller
// waits for the pod of the first one. It stops waiting after 5 minutes (ExpectationsTimeout), but syncs the Job again
// only when something changes or when it lists all Jobs, which may take a day. A Job of that name that is created after
// the 5 minutes gets its pod.
const (
	// forgottenAfter is how long a Job has to be observed without a pod before it counts as forgotten. It covers the
	// longest pause before a failed pod is replaced, 10 minutes (MaxJobPodFailureBackOff): a disrupted pod that is
	// gone leaves no trace in the Job's status.
	forgottenAfter = 10 * time.Minute
	// maxPodlessGap is the longest pause between two observations of a Job without a pod.
	maxPodlessGap = 5 * time.Minute
)

// withoutPod returns since when a Job that has not ended and is not being deleted has been observed without a pod, by
// the clock of this process alone; the zero time for any other Job.
func (r *reconciler) withoutPod(job *batchv1.Job, pod *corev1.Pod, now time.Time) time.Time {
	switch {
	case job == nil || isDeleting(job) || !jobEndTime(job).IsZero():
		return time.Time{}
	case pod != nil:
		r.podless.remove(string(job.UID))
		return time.Time{}
	}
	return r.podless.add(string(job.UID), now)
}

// neverHadPod reports whether the status of a Job shows that Kubernetes has begun it, that it counts no pod of it, and
// that nothing defers its first pod.
func neverHadPod(job *batchv1.Job) bool {
	s := &job.Status
	uncounted := ptr.Deref(s.UncountedTerminatedPods, batchv1.UncountedTerminatedPods{})
	return s.StartTime != nil && s.Active == 0 && s.Succeeded == 0 && s.Failed == 0 &&
		ptr.Deref(s.Ready, 0) == 0 && ptr.Deref(s.Terminating, 0) == 0 && len(uncounted.Succeeded)+len(uncounted.Failed) == 0 &&
		!ptr.Deref(job.Spec.Suspend, false) && job.Spec.ManagedBy == nil
}

// addForgotten sets which of the given Jobs are forgotten: those without a pod in the API server, too. If that cannot be
// read, none is.
func (r *reconciler) addForgotten(ctx context.Context, observed *Observed, overdue map[types.UID]bool) {
	if len(overdue) == 0 {
		return
	}
	err := r.Pods(ctx, observed.Owner.Namespace, func(pod *corev1.Pod) {
		if job := metav1.GetControllerOf(pod); job != nil {
			delete(overdue, job.UID)
		}
	})
	if err != nil {
		return
	}
	observed.UploadForgotten = observed.UploadJob != nil && overdue[observed.UploadJob.UID]
	for _, rep := range observed.Replicas {
		rep.Forgotten = rep.Job != nil && overdue[rep.Job.UID]
	}
}

// deleteForgotten deletes the Jobs that Kubernetes has forgotten. Later plans create those that are still needed. The
// mirror of a claim that is being deleted stays: no new pod can mount the claim.
func (p *planner) deleteForgotten() {
	if p.UploadForgotten {
		p.deleteForgottenJob(p.UploadJob)
	}
	for _, index := range p.indexes() {
		if r := p.Replicas[index]; r != nil && r.Forgotten && !isDeletedBeforeUpload(r) {
			p.deleteForgottenJob(r.Job)
		}
	}
}

func (p *planner) deleteForgottenJob(job *batchv1.Job) {
	planned := slices.ContainsFunc(p.out.Actions, func(a Action) bool {
		other, is := a.Object.(*batchv1.Job)
		return is && a.Verb == Delete && other.Name == job.Name
	})
	if planned {
		return
	}
	p.do(Action{
		Verb: Delete, Object: job, Reason: "LoaderForgotten",
		Message: fmt.Sprintf("Job %s is deleted, because Kubernetes has created no pod for it in %s and reports no error; if it is still needed, it is created again", job.Name, forgottenAfter),
	})
}
