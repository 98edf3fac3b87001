package dataset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// betweenSweeps is how often a loader checks whether versions are left that nobody reads any more.
const betweenSweeps = 10 * time.Minute

// refreshFailed begins the message of a replica that holds an older version than its source.
const refreshFailed = "its last refresh failed: "

// versioned reports whether the replicas hold versions, of which readers get the current one.
func (s *Observed) versioned() bool { return !s.Source.Writable() && s.Source.Copies() }

// refreshRequest identifies the last refresh that a person asked for; empty if there was none.
func (s *Observed) refreshRequest() string {
	value := s.Owner.Annotations[replica.AnnotationRefresh]
	if value == "" || s.Source.Writable() {
		return ""
	}
	return digest(value)
}

// grow raises the request of a claim to the wanted capacity.
func (p *planner) grow(r *Replica) {
	asked := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if r.Claim.Status.Phase == corev1.ClaimBound && asked.Cmp(p.Source.Capacity) < 0 { // only a bound claim can grow
		p.do(Action{Verb: Grow, Object: r.Claim, Size: p.Source.Capacity})
	}
}

// growing reports whether a loader has to wait until the replica's volume can grow: kubelet grows a volume as
// it mounts it, once its PersistentVolume has the size and its claim is left to the node. A loader that started
// earlier would find the old size, and fail for lack of room. Growth that is refused or waits for the room of
// other volumes does not delay the loader: its data may fit.
func (p *planner) growing(r *Replica) bool {
	if r.Volume == nil || r.Claim.Status.Phase != corev1.ClaimBound {
		return false // the volume is created with the size that its claim requests
	}
	asked, own := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage], r.Claim.Status.Capacity[corev1.ResourceStorage]
	if asked.Cmp(p.Source.Capacity) < 0 {
		return true
	}
	granted := r.Volume.Spec.Capacity[corev1.ResourceStorage]
	if granted.Cmp(asked) < 0 {
		return !cannotGrow(r.Claim)
	}
	return own.Cmp(asked) < 0 && !leftToNode(r.Claim)
}

// cannotGrow reads a condition and not allocatedResourceStatuses, which are also "infeasible" while room is
// made, and which API servers before 1.32 drop.
func cannotGrow(claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		outcome := ledger.Outcome(c.Reason)
		return c.Type == corev1.PersistentVolumeClaimControllerResizeError && c.Status == corev1.ConditionTrue &&
			(outcome == ledger.Refused || outcome == ledger.Waiting)
	})
}

// leftToNode reports whether it is kubelet's turn to grow the volume of a claim.
func leftToNode(claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Status == corev1.ConditionTrue &&
			(c.Type == corev1.PersistentVolumeClaimFileSystemResizePending || c.Type == corev1.PersistentVolumeClaimNodeResizeError)
	})
}

// A visit is a reason to start a loader that mounts a complete replica.
type visit struct {
	grows    bool // kubelet grows only a mounted volume, and consumers mount another claim
	onDemand bool // somebody asked for a refresh
	next     schedule
	last     time.Time // when the source was last checked; only with next
	sweeps   bool      // there are old versions to remove
}

func (p *planner) visitOf(r *Replica) visit {
	asked, has := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage], r.Claim.Status.Capacity[corev1.ResourceStorage]
	v := visit{grows: has.Cmp(asked) < 0, sweeps: loadedReport(r.Claim).OldVersions > 0}
	if p.versioned() {
		if v.next = p.Source.Refresh; v.next != nil {
			v.last = lastChecked(r.Claim, p.Now)
		}
		v.onDemand = p.refreshRequest() != "" && p.refreshRequest() != r.Claim.Annotations[annotationRefreshed]
	}
	return v
}

// lastChecked returns when a complete replica was last known to hold what its source has.
func lastChecked(claim *corev1.PersistentVolumeClaim, now time.Time) time.Time {
	took, _ := time.ParseDuration(claim.Annotations[annotationTook]) // an unreadable value counts as 0
	complete := claim.CreationTimestamp.Add(took)
	at := timeOf(claim, annotationRefreshedAt)
	if at.IsZero() {
		at = complete
	}
	return clampFuture(at, complete, now)
}

// refresh reports whether visits check the source.
func (v visit) refresh() bool { return v.onDemand || v.next != nil }

// refreshNow reports whether a visit that begins now checks the source. A schedule by the clock waits for its
// time, whatever else the visit is for; with an interval each visit does.
func (v visit) refreshNow(now time.Time) bool {
	if _, interval := v.next.(every); v.onDemand || v.next == nil || interval {
		return v.refresh()
	}
	return !now.Before(v.next.Next(v.last))
}

// due returns when the next visit is due after a Job that has ended; the zero time is never.
func (v visit) due(after *batchv1.Job, asked string, now time.Time) time.Time {
	at, load := jobEndByOwnClock(after, now), after.Labels[labelRole] == roleLoad
	var out time.Time
	soonest := func(t time.Time) {
		if out.IsZero() || t.Before(out) {
			out = t
		}
	}
	if v.grows && load && v.next == nil {
		soonest(at) // the Job before was a load and no visit
	} else if v.grows {
		soonest(at.Add(betweenVisits))
	}
	if v.next != nil {
		since := at
		if at.Equal(longAgo) || !load && !isRefresh(after) {
			since = v.last // the next time may have passed in between
		}
		soonest(v.next.Next(since))
	}
	// A failed refresh is not retried until somebody asks for another.
	if v.onDemand && after.Annotations[annotationRefreshed] != asked {
		soonest(at)
	}
	if v.sweeps {
		soonest(at.Add(betweenSweeps))
	}
	return out
}

// planVisits plans visits of a complete replica; those that check the source take turns.
func (p *planner) planVisits(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if status.State != flexlvmv1.ReplicaComplete {
		return // it is to be evicted, or not observed
	}
	v := p.visitOf(r)
	if v.grows {
		asked, has := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage], r.Claim.Status.Capacity[corev1.ResourceStorage]
		status.Message = fmt.Sprintf("grows from %s to %s", has.String(), asked.String())
	}
	switch {
	case r.Job == nil && (r.Busy || v == visit{}):
	case r.Job == nil && !v.grows && !v.sweeps && !v.refreshNow(p.Now):
		p.keepStale(index, r, status)
		p.requeueAfter(v.next.Next(v.last).Sub(p.Now))
	case r.Job == nil:
		p.keepStale(index, r, status)
		if checks := v.refreshNow(p.Now); !p.growsFirst(r, v, checks) && p.reserveVisit(checks) {
			p.do(Action{Verb: Create, Object: p.task(index, r.Claim).visit(checks)})
		}
		p.requeueAfter(whileLoading)
	case jobEndTime(r.Job).IsZero() || isDeleting(r.Job):
		p.visiting(index, r, status)
		p.requeueAfter(whileLoading)
	default:
		p.visited(r, status)
		p.visitAgain(r, v)
	}
}

// growsFirst reports whether a visit has to wait: one that fetches changes may lack room until the volume has
// grown.
func (p *planner) growsFirst(r *Replica, v visit, checks bool) bool {
	return checks && v.grows && p.growing(r)
}

// visitAgain deletes the last visit's Job when the next visit is due.
func (p *planner) visitAgain(r *Replica, v visit) {
	due := v.due(r.Job, p.refreshRequest(), p.Now)
	switch {
	case due.IsZero():
	case p.Now.Before(due):
		p.requeueAfter(due.Sub(p.Now))
	default:
		if p.reserveVisit(v.refresh()) {
			p.do(Action{Verb: Delete, Object: r.Job})
		}
		p.requeueAfter(whileLoading)
	}
}

// reserveVisit reports whether one more visit may begin, and counts it if so: a tenth of the replicas, at least
// one, check the source at the same time, so that a bad version or source does not reach all nodes together.
// They ask the source, so with peers sourceLoaders bounds them, too.
func (p *planner) reserveVisit(checks bool) bool {
	if !checks {
		return true
	}
	const share = 10
	if p.visits >= max(1, int(p.count)/share) || p.Source.Peers != "" && p.peers.atSource >= p.Source.SourceLoaders {
		return false
	}
	p.visits++
	p.peers.atSource++
	return true
}

// countVisits counts the replicas whose loaders check the source, or are about to. A visit has no deadline, so
// a stuck one, whose node accepts no pod or is down, would block the visits of all others: it does not count.
func (p *planner) countVisits() {
	for _, r := range p.Replicas {
		if r.Claim != nil && isRefreshing(r) && !stuck(r, p.Now) {
			p.visits++
		}
	}
}

// isRefreshing reports whether a replica has a refresh that has not ended or whose Job is being deleted.
func isRefreshing(r *Replica) bool {
	return r.Job != nil && isRefresh(r.Job) && (jobEndTime(r.Job).IsZero() || isDeleting(r.Job))
}

// isRefresh reports whether a Job fetches changes of the source into a complete replica.
func isRefresh(job *batchv1.Job) bool {
	return job.Labels[labelRole] == roleVisit && slices.Contains(job.Spec.Template.Spec.Containers[0].Args, "--sync")
}

// visiting reports on a visit that has not ended.
func (p *planner) visiting(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if isRefresh(r.Job) {
		p.watchRefresh(index, r, status)
		if report := reportOf(r.Pod); report != nil && r.Pod.Status.Phase == corev1.PodFailed {
			status.Message = "its refresh is retried; the last time: " + report.Message
		}
	}
	p.keepStale(index, r, status)
	// A failed refresh is remembered by its message, to which nothing may be added.
	if why := whyVisitWaits(r, p.Now); why != "" && !strings.HasPrefix(status.Message, refreshFailed) {
		status.Message = strings.TrimPrefix(status.Message+"; "+why, "; ")
	}
}

// whyVisitWaits returns what keeps a visit's loader from running; empty if nothing does, or the loader was only just
// created.
func whyVisitWaits(r *Replica, now time.Time) string {
	switch {
	case r.Pod == nil:
		if r.Refused != "" {
			return refusedOr(r.Refused, nil)
		}
	case r.Pod.Spec.NodeName != "" && stuck(r, now):
		return fmt.Sprintf("its loader's pod on node %s does not respond; it waits for the node", r.Pod.Spec.NodeName)
	case r.Pod.Status.Phase == corev1.PodPending && now.Sub(r.Pod.CreationTimestamp.Time) >= beforeDisplacing:
		return whyWaiting(r.Pod)
	}
	return ""
}

// visited reports how a visit ended, and records what the replica holds since.
func (p *planner) visited(r *Replica, status *flexlvmv1.ReplicaStatus) {
	succeeded, failed, why := jobResult(r.Job)
	switch {
	case failed && isRefresh(r.Job):
		p.markStale(r, status, refreshFailed+failure(r.Pod, why))
	case failed:
		status.Message = "its last visit failed: " + failure(r.Pod, why)
	case succeeded && r.Job.Labels[labelRole] == roleVisit && r.Claim.Annotations[annotationVisit] != string(r.Job.UID):
		p.do(p.recordVisit(r))
	}
}

// markStale reports that a replica does not hold what its source has.
func (p *planner) markStale(r *Replica, status *flexlvmv1.ReplicaStatus, message string) {
	status.Message = message
	p.out.Stale = append(p.out.Stale, fmt.Sprintf("claim %s on node %s: %s", r.Claim.Name, r.Node, strings.TrimPrefix(message, refreshFailed)))
}

// keepStale keeps the report of markStale until a later visit has ended.
func (p *planner) keepStale(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if old := p.remembered(index, status.Claim); status.Message == "" && strings.HasPrefix(old.Message, refreshFailed) {
		p.markStale(r, status, old.Message)
	}
}

// recordVisit records the result of a visit that succeeded.
func (p *planner) recordVisit(r *Replica) Action {
	out := Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationVisit: string(r.Job.UID)}}
	report := reportOf(r.Pod)
	if report == nil || report.State != protocol.StateComplete {
		report = nil // its pod is gone; the next visit reports again
	}
	was := loadedReport(r.Claim)
	if report != nil && !p.Source.Writable() { // visits of a writable volume load nothing
		report.Message = ""
		text, err := json.Marshal(report)
		if err != nil {
			panic(err) // numbers and strings only
		}
		out.Annotations[annotationLoaded] = string(text)
	}
	if !isRefresh(r.Job) {
		return out
	}
	asked, checkedAt := r.Job.Annotations[annotationRefreshed], jobEndByOwnClock(r.Job, p.Now)
	if checkedAt.Equal(longAgo) {
		checkedAt = p.Now // the end was only just observed; the next refresh counts from now
	}
	out.Annotations[annotationRefreshedAt] = checkedAt.UTC().Format(time.RFC3339)
	out.Annotations[annotationRefreshed] = asked
	switch {
	case report != nil && report.Contents != was.Contents:
		out.Reason = "RefreshComplete"
		out.Message = fmt.Sprintf("claim %s on %s now holds version %s; before, it held %s: %d files, %d bytes", r.Claim.Name, r.Node, report.Contents, orUnknown(was.Contents), report.FilesDone, report.BytesDone)
	case asked != "" && asked != r.Claim.Annotations[annotationRefreshed]:
		out.Reason = "RefreshComplete"
		out.Message = fmt.Sprintf("claim %s on %s holds what its source has: version %s", r.Claim.Name, r.Node, orUnknown(was.Contents))
	}
	return out
}

func orUnknown(version string) string { return cmp.Or(version, "unknown") }

// reportVersion reports which version a complete replica holds.
func (p *planner) reportVersion(r *Replica, status *flexlvmv1.ReplicaStatus) {
	report := loadedReport(r.Claim)
	status.Version, status.OldVersions = report.Contents, int32(min(report.OldVersions, 1<<20))
	if at := timeOf(r.Claim, annotationRefreshedAt); !at.IsZero() {
		status.RefreshedAt = &metav1.Time{Time: at}
	}
	if report.Contents == "" {
		return
	}
	if p.out.Status.Versions == nil {
		p.out.Status.Versions = map[string]int32{}
	}
	p.out.Status.Versions[report.Contents]++
}
