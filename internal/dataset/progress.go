package dataset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// stalls is how long nothing may arrive before a load counts as stalled: longer than it takes to read the
// largest file once more for its checksum.
const stalls = 5 * time.Minute

// watchProgress records in the status when the progress last grew, and that it has stalled if that was long
// ago. A loader that does not answer has made no progress.
func (p *planner) watchProgress(index int, status *flexlvmv1.ReplicaStatus) {
	if !isLoading(status.State) {
		return
	}
	was := p.remembered(index, status.Claim)
	if !isLoading(was.State) {
		was.Progress = nil
	}
	status.Progress = p.watched(was.Progress, status.Progress, status)
}

// watchRefresh is watchProgress for a loader that fetches another version.
func (p *planner) watchRefresh(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	was := p.remembered(index, status.Claim).Refresh
	switch {
	case r.Report != nil && r.Report.State == protocol.StateFetching:
		status.Refresh = p.watched(was, progressOf(r.Report), status)
	case was != nil && r.Report == nil && r.Pod != nil && r.Pod.Status.Phase == corev1.PodRunning:
		status.Refresh = p.watched(was, was, status)
	}
}

// watched returns the progress of a loader, with the time when it last changed.
func (p *planner) watched(was, is *flexlvmv1.Progress, status *flexlvmv1.ReplicaStatus) *flexlvmv1.Progress {
	var progress flexlvmv1.Progress
	if is != nil {
		progress = *is // a copy: it may be part of the previous status
	}
	changed := metav1.NewTime(p.Now.Truncate(time.Second))
	if was != nil && was.Changed != nil && was.Bytes == progress.Bytes && was.Files == progress.Files && !was.Changed.After(p.Now) {
		changed = *was.Changed
	}
	progress.Changed = &changed
	if p.Now.Sub(changed.Time) < stalls {
		return &progress
	}
	status.StalledSince = &changed
	progress.BytesPerSecond, progress.SecondsLeft = 0, 0 // an estimate would be outdated
	note := "nothing has arrived since " + changed.UTC().Format(time.RFC3339)
	if !strings.HasPrefix(status.Message, note) {
		status.Message = strings.TrimSuffix(note+"; "+status.Message, "; ")
	}
	return &progress
}

// isLoading reports whether a replica in this state has a running loader.
func isLoading(state flexlvmv1.ReplicaState) bool {
	return state == flexlvmv1.ReplicaLoading || state == flexlvmv1.ReplicaStreaming
}

// timeToReady returns how long a replica took to become complete; nil if that was not recorded.
func timeToReady(claim *corev1.PersistentVolumeClaim) *metav1.Duration {
	took, err := time.ParseDuration(claim.Annotations[annotationTook])
	if err != nil || took < 0 {
		return nil
	}
	return &metav1.Duration{Duration: took}
}

// timeLeft formats an estimate; empty if there is none.
func timeLeft(seconds int64) string {
	if seconds <= 0 {
		return ""
	}
	return duration.HumanDuration(time.Duration(min(seconds, int64(maxTimeLeft/time.Second))) * time.Second)
}

// maxTimeLeft bounds the estimate of a loader.
const maxTimeLeft = 10000 * time.Hour

// A statusEvent is an event for a change of the status.
type statusEvent struct{ kind, reason, message string }

// eventsOf returns the events for the changes between two statuses of a volume: loaders that started, stalled, or
// resumed. The action that completes or fails a replica has its own event.
func eventsOf(before, after flexlvmv1.VolumeStatus) []statusEvent {
	was := map[string]flexlvmv1.ReplicaStatus{}
	for _, r := range before.Nodes {
		was[r.Claim] = r
	}
	var out []statusEvent
	for _, r := range after.Nodes {
		old := was[r.Claim]
		out = append(out, refreshEvents(old, r)...)
		if !isLoading(r.State) {
			continue
		}
		what := fmt.Sprintf("claim %s on %s", r.Claim, r.Node)
		switch {
		case !isLoading(old.State):
			out = append(out, statusEvent{corev1.EventTypeNormal, "LoadStarted", what + " is being loaded"})
		case old.StalledSince == nil && r.StalledSince != nil:
			out = append(out, statusEvent{corev1.EventTypeWarning, "LoadStalled", what + ": " + r.Message})
		case old.StalledSince != nil && r.StalledSince == nil:
			out = append(out, statusEvent{corev1.EventTypeNormal, "LoadResumed", fmt.Sprintf("%s resumed, after nothing had arrived since %s", what, old.StalledSince.UTC().Format(time.RFC3339))})
		}
	}
	return out
}

// refreshEvents returns the events of a replica's refresh. Its completion has its own event, see recordVisit.
func refreshEvents(old, now flexlvmv1.ReplicaStatus) (out []statusEvent) {
	what := fmt.Sprintf("claim %s on %s", now.Claim, now.Node)
	switch {
	case now.Refresh == nil:
	case old.Refresh == nil:
		out = append(out, statusEvent{corev1.EventTypeNormal, "RefreshStarted", what + ": another version is being loaded beside " + orUnknown(now.Version)})
	case old.StalledSince == nil && now.StalledSince != nil:
		out = append(out, statusEvent{corev1.EventTypeWarning, "RefreshStalled", what + ": " + now.Message})
	case old.StalledSince != nil && now.StalledSince == nil:
		out = append(out, statusEvent{corev1.EventTypeNormal, "RefreshResumed", fmt.Sprintf("%s resumed, after nothing had arrived since %s", what, old.StalledSince.UTC().Format(time.RFC3339))})
	}
	if why, failed := strings.CutPrefix(withoutUnmatched(now), refreshFailed); failed && withoutUnmatched(old) != withoutUnmatched(now) {
		out = append(out, statusEvent{corev1.EventTypeWarning, "RefreshFailed", fmt.Sprintf("%s keeps version %s: %s", what, orUnknown(now.Version), why)})
	}
	return out
}
