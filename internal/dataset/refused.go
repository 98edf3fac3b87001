package dataset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long a Job may be without a pod before it is asked why.
const patience = 5 * time.Second

// refusedOr is idle, or why there is no pod.
func refusedOr(refused string, pod *corev1.Pod) string {
	if pod == nil && refused != "" {
		return "its loader's pod is refused: " + refused
	}
	return idle(pod)
}

// addRefusals adds why Jobs have no pods. Nothing depends on it, so an error is none. What refuses the
// pods of many is the same for all, such as a quota, so only the first few are asked for.
func (r *reconciler) addRefusals(ctx context.Context, observed *Observed) {
	if r.Refused == nil {
		return
	}
	asked := 0
	why := func(job *batchv1.Job, pod *corev1.Pod) string {
		if asked >= mostInFull || job == nil || pod != nil || going(job) || !ended(job).IsZero() || observed.Now.Sub(job.CreationTimestamp.Time) < patience {
			return ""
		}
		asked++
		return r.Refused(ctx, job)
	}
	observed.UploadRefused = why(observed.UploadJob, observed.UploadPod)
	for _, index := range slices.Sorted(maps.Keys(observed.Replicas)) {
		rep := observed.Replicas[index]
		rep.Refused = why(rep.Job, rep.Pod)
	}
}

// asksEvents asks the events of a Job why no pod could be made for it: Kubernetes writes
// it nowhere else.
func asksEvents(live client.Reader) func(context.Context, *batchv1.Job) string {
	return func(ctx context.Context, job *batchv1.Job) string {
		events := &corev1.EventList{}
		if err := live.List(ctx, events, client.InNamespace(job.Namespace),
			client.MatchingFields{"involvedObject.uid": string(job.UID), "reason": "FailedCreate"}); err != nil {
			return fmt.Sprintf("its events cannot be read: %v", err)
		}
		return lastRefusal(events.Items)
	}
}

// lastRefusal is the message of the latest event.
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
