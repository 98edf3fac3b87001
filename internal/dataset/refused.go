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

// patience is how long a Job has to be observed without a pod before its events are read.
const patience = 5 * time.Second

// refusedOr returns why the API server refuses the pod, and otherwise idle.
func refusedOr(refused string, pod *corev1.Pod) string {
	if pod == nil && refused != "" {
		return "its loader's pod is refused: " + refused
	}
	return idle(pod)
}

// addRefusals adds why Jobs have no pods, and which of them Kubernetes has forgotten. Errors are ignored: the next pass
// asks again. The cause, such as a quota, is mostly the same for all Jobs, so it is read only for the first few.
func (r *reconciler) addRefusals(ctx context.Context, observed *Observed) {
	if r.Refused == nil {
		return
	}
	asked, overdue := 0, map[types.UID]bool{}
	why := func(job *batchv1.Job, pod *corev1.Pod) string {
		since := r.withoutPod(job, pod, observed.Now)
		if since.IsZero() || asked >= mostInFull || observed.Now.Sub(since) < patience {
			return ""
		}
		asked++
		refused := r.Refused(ctx, job)
		if refused == "" && neverHadPod(job) && observed.Now.Sub(since) >= forgottenAfter {
			overdue[job.UID] = true
		}
		return refused
	}
	observed.UploadRefused = why(observed.UploadJob, observed.UploadPod)
	for _, index := range slices.Sorted(maps.Keys(observed.Replicas)) {
		rep := observed.Replicas[index]
		rep.Refused = why(rep.Job, rep.Pod)
	}
	r.addForgotten(ctx, observed, overdue)
}

// asksEvents reads from the events of a Job why no pod could be created for it: Kubernetes records it nowhere
// else.
func asksEvents(live client.Reader) func(context.Context, *batchv1.Job) string {
	return func(ctx context.Context, job *batchv1.Job) string {
		events := &corev1.EventList{}
		if err := live.List(ctx, events, client.InNamespace(job.Namespace),
			client.MatchingFields{"involvedObject.uid": string(job.UID), "reason": "FailedCreate"}, client.Limit(4)); err != nil {
			return fmt.Sprintf("its events cannot be read: %v", err)
		}
		return lastRefusal(events.Items)
	}
}

// lastRefusal returns the message of the latest event.
func lastRefusal(events []corev1.Event) string {
	message, at := "", time.Time{}
	for _, e := range events {
		seen := e.LastTimestamp.Time
		if e.EventTime.After(seen) {
			seen = e.EventTime.Time
		}
		if message == "" || seen.After(at) {
			message, at = e.Message, seen
		}
	}
	return clip(message)
}
