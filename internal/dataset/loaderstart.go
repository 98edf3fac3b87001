package dataset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// neverStarted are the reasons that container runtimes report for a container whose program never ran.
var neverStarted = []string{"StartError", "ContainerCannotRun", "CreateContainerError"}

// loaderStartTime reports whether the loader of a pod has started, and when, according to its kubelet.
func loaderStartTime(pod *corev1.Pod) (at time.Time, ran bool) {
	if pod == nil {
		return time.Time{}, false
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name != loader {
			continue
		}
		if c.State.Running != nil {
			return c.State.Running.StartedAt.Time, true
		}
		if end := c.State.Terminated; end != nil && !slices.Contains(neverStarted, end.Reason) {
			return end.StartedAt.Time, true
		}
	}
	return time.Time{}, false
}

func hasLoaderStarted(pod *corev1.Pod) bool {
	_, ran := loaderStartTime(pod)
	return ran
}

// firstLoaderStartTime reports whether any loader of the replica's Job has started, and when the first one did; the zero
// time if no kubelet reported that.
func (r *Replica) firstLoaderStartTime() (first time.Time, ran bool) {
	for _, pod := range append(r.Pods[:len(r.Pods):len(r.Pods)], r.Pod) {
		at, did := loaderStartTime(pod)
		ran = ran || did
		if did && at.Unix() > 0 && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, ran
}

// overdue returns a message if a load has taken longer than timeoutForDataDownload, counted from the start of
// its first loader, and "" otherwise. A single loader ends itself in time; this is for a sequence of loaders
// that each failed early.
func (p *planner) overdue(r *Replica) string {
	if p.Source.Timeout == 0 || r.Job == nil || copies(r.Job) || r.Lags || !jobEndTime(r.Job).IsZero() || r.Job.Labels[labelRole] != roleLoad {
		return ""
	}
	first, _ := r.firstLoaderStartTime()
	// The clock of the loader's node may be behind, but no loader began before its Job was created.
	if made := timeOf(r.Job, annotationMade); !first.IsZero() && first.Before(made) {
		first = made
	}
	if first.IsZero() || p.Now.Sub(first) < p.Source.Timeout+afterDeadline {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("timeoutForDataDownload %s has expired since its loader began at %s; %s",
		p.Source.Timeout, first.UTC().Format(time.RFC3339), whyIdle(r.Pod)), "; ")
}

// exitUnknown is the exit code that container runtimes report for a container whose end they did not observe, as
// after a restart of its node. The loader never exits with it.
const exitUnknown = 255

// wasInterrupted reports whether the loader of a pod ended because its node or its container runtime did. Such an end
// shows nothing about the load.
func wasInterrupted(pod *corev1.Pod) bool {
	at := terminated(pod)
	return at != nil && (at.ExitCode == exitUnknown || at.Reason == "ContainerStatusUnknown") // kubelet sets this reason
}

// couldNotRun returns why the loader of an ended pod never started, or was interrupted, according to the pod's
// status.
func couldNotRun(pod *corev1.Pod) string {
	if wasInterrupted(pod) {
		return "its loader was interrupted, as by a restart of its node or of the container runtime"
	}
	if pod == nil {
		return "its loader could not run, and its pods are gone"
	}
	reason, message := pod.Status.Reason, pod.Status.Message
	if at := terminated(pod); at != nil {
		reason, message = cmp.Or(at.Reason, reason), cmp.Or(at.Message, message)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			reason, message = cmp.Or(reason, c.Reason), cmp.Or(message, c.Message)
		}
	}
	return "its loader could not run: " + clip(strings.TrimSuffix(reason+": "+message, ": "))
}

// loadFailedFor reports whether the replica's Job is a load of this attempt that has failed. A Job whose loader
// never ran, or whose last loader was interrupted, does not count and is recreated without limit, because nodes
// and room may appear. Nor does a Job that copied from peers, whose failure shows nothing about the source.
func (r *Replica) loadFailedFor(attempt string) (failed bool, why string) {
	_, failed, why = jobResult(r.Job)
	_, ran := r.firstLoaderStartTime()
	return failed && ran && !wasInterrupted(r.Pod) && !copies(r.Job) && r.Job.Annotations[annotationAttempt] == attempt && r.Job.Labels[labelRole] == roleLoad, why
}

// recreateLater deletes a Job some time after it has ended, so that a later plan creates it again.
func (p *planner) recreateLater(job *batchv1.Job) {
	due := jobEndByOwnClock(job, p.Now).Add(betweenVisits)
	if p.Now.Before(due) {
		p.requeueAfter(due.Sub(p.Now))
		return
	}
	p.do(Action{Verb: Delete, Object: job})
}
