package dataset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podlessDelay is how long a Job has to be observed without a pod before its events are read.
const podlessDelay = 5 * time.Second

// refusedOr returns why the API server refuses the pod, and otherwise whyIdle.
func refusedOr(refused string, pod *corev1.Pod) string {
	if pod == nil && refused != "" {
		return "its loader's pod is refused: " + refused
	}
	return whyIdle(pod)
}

// A podlessJob is a Job that has had no pod for at least podlessDelay.
type podlessJob struct {
	*batchv1.Job
	refused *string // why its pod is refused, in what was observed
	overdue bool    // it never had a pod, and has been without one for forgottenAfter
}

// addRefusals sets why Jobs have no pods, and which of them Kubernetes has forgotten. That the events cannot be read is
// reported as the cause. The cause, such as a quota, is mostly the same for all Jobs, so in each pass it is read only for
// the first few.
func (r *reconciler) addRefusals(ctx context.Context, observed *Observed) {
	if r.Refused == nil {
		return
	}
	jobs, overdue := r.podlessJobs(observed), map[types.UID]bool{}
	for _, job := range jobs[:min(len(jobs), maxInFull)] {
		*job.refused = r.Refused(ctx, job.Job)
		if *job.refused == "" && job.overdue {
			overdue[job.UID] = true
		}
	}
	r.addForgotten(ctx, observed, overdue)
}

// podlessJobs returns the Jobs without pods. Those that Kubernetes may have forgotten come first: only their events show
// that they have to be deleted.
func (r *reconciler) podlessJobs(observed *Observed) (out []podlessJob) {
	add := func(job *batchv1.Job, pod *corev1.Pod, refused *string) {
		*refused = ""
		since := r.withoutPod(job, pod, observed.Now)
		if without := observed.Now.Sub(since); !since.IsZero() && without >= podlessDelay {
			out = append(out, podlessJob{job, refused, without >= forgottenAfter && neverHadPod(job)})
		}
	}
	add(observed.UploadJob, observed.UploadPod, &observed.UploadRefused)
	for _, index := range slices.Sorted(maps.Keys(observed.Replicas)) {
		rep := observed.Replicas[index]
		add(rep.Job, rep.Pod, &rep.Refused)
	}
	slices.SortStableFunc(out, func(a, b podlessJob) int {
		switch {
		case a.overdue == b.overdue:
			return 0
		case a.overdue:
			return -1
		}
		return 1
	})
	return out
}

// Of the events of a Job, only the first eventPages pages are read: a tenant can write any number of them, of up to
// 1.5 MiB each.
const (
	eventsPerPage = 4
	eventPages    = 10
)

// refusalFromEvents reads from the events of a Job why no pod could be created for it: Kubernetes records it nowhere
// else. The API server lists events by name, which puts the oldest of a Job first.
func refusalFromEvents(live client.Reader) func(context.Context, *batchv1.Job) string {
	return func(ctx context.Context, job *batchv1.Job) string {
		latest, page := corev1.Event{}, ""
		for range eventPages {
			events := &corev1.EventList{}
			if err := live.List(ctx, events, client.InNamespace(job.Namespace),
				client.MatchingFields{"involvedObject.uid": string(job.UID), "reason": "FailedCreate"},
				client.Limit(eventsPerPage), client.Continue(page)); err != nil {
				return fmt.Sprintf("its events cannot be read: %v", err)
			}
			latest = lastRefusal(append(events.Items, latest))
			if page = events.Continue; page == "" {
				break
			}
		}
		return clip(latest.Message)
	}
}

// lastRefusal returns the latest of these events that has a message.
func lastRefusal(events []corev1.Event) (latest corev1.Event) {
	for _, e := range events {
		if e.Message != "" && (latest.Message == "" || seen(&e).After(seen(&latest))) {
			latest = e
		}
	}
	return latest
}

// seen returns when an event was last seen.
func seen(e *corev1.Event) time.Time {
	if e.EventTime.After(e.LastTimestamp.Time) {
		return e.EventTime.Time
	}
	return e.LastTimestamp.Time
}
