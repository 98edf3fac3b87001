package dataset

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Observed is everything known about one volume of a VolumeManager: the desired and the observed state.
type Observed struct {
	Owner  *flexlvmv1.VolumeManager
	Config flexlvmv1.VolumeConfig
	Source Source
	// Wanted is false if the volume is to be released: the VolumeManager is Completed or
	// deleted, or no longer names it.
	Wanted bool
	// Dropped: the spec no longer names it, and the VolumeManager is not being deleted.
	Dropped bool
	// Upload: the content of the volume is to be uploaded before the release.
	Upload bool
	// Image of the loader, UID of the cluster, parameters of the replicas' class.
	Image, Cluster string
	Class          map[string]string
	Door           pv.Door // by which consumers reach the volume

	// Offer is the volume of another namespace that this one shares; OfferNodes is the number of nodes that have
	// it. SharedBy are the claims by which other namespaces read this volume.
	Offer      *Offer
	OfferNodes int
	SharedBy   []client.ObjectKey
	// shares are the PersistentVolumes of SharedBy.
	shares []*corev1.PersistentVolume
	// Withdrawn are the claims and PersistentVolumes to delete, because the volume is no longer offered to their
	// namespaces.
	Withdrawn []client.Object

	Replicas  map[int]*Replica
	UploadJob *batchv1.Job // the Job that uploads
	UploadPod *corev1.Pod
	// UploadRefused and UploadForgotten are Replica.Refused and Replica.Forgotten for UploadJob.
	UploadRefused   string
	UploadForgotten bool
	Readers         Readers
	// Labelled are the nodes that carry the dataset's label.
	Labelled []string
	// Fitting are the nodes that may have replicas. Matching are those that match the nodeAffinity, NotMatching
	// those that do not. A node that does not match is not in NotMatching while it is new or after it is gone
	// from the API.
	Fitting, Matching, NotMatching map[string]bool
	// ConsumersByNode are the pods that use the volume, by node; nil if they were not listed. They are listed if a
	// replica is to leave its node, is deleted before its upload, or may be displaced.
	ConsumersByNode map[string][]string
	// Consumers are the same pods; they are also listed before a release that uploads.
	Consumers []string
	// StartedAt is when this controller began to watch.
	StartedAt, Now time.Time
	// Watched is since when this controller has listed the pods that use the volume without a pause, and has found
	// none. It is set before a release that uploads.
	Watched time.Time
}

// Readers are the claim of all consumers and its PersistentVolume; nil if they do not exist.
type Readers struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// Replica is what exists of one replica; missing objects are nil.
type Replica struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	Node   string // of the volume
	// GroupMissing: Node reports that the volume group of Volume is not there.
	GroupMissing bool
	Job          *batchv1.Job
	Pod          *corev1.Pod // the latest pod of the Job
	// Pods are all pods of the Job that Kubernetes still has.
	Pods []*corev1.Pod
	// Lags: the Job has ended, but its pod has not been observed to end, see asOfPods.
	Lags bool
	// NodeNotReady: Pod has not ended, and its node has not been ready for a while.
	NodeNotReady bool
	// Refused is why the API server refuses pods of the Job, such as a quota's message.
	Refused string
	// Forgotten: the Job has had no pod for long, nothing refuses one, and Kubernetes does not create one.
	Forgotten bool
	Report    *protocol.Status // the last report of its loader
	// Busy: a loader is still running although its Job is gone.
	Busy bool
}

func progressOf(r *protocol.Status) *flexlvmv1.Progress {
	if r == nil {
		return nil
	}
	out := &flexlvmv1.Progress{Files: r.FilesDone, FilesTotal: r.FilesTotal, Bytes: r.BytesDone, BytesTotal: r.BytesTotal}
	out.Percent = percent(out, r.State == protocol.StateComplete)
	if r.State != protocol.StateComplete {
		out.BytesPerSecond, out.SecondsLeft = max(0, r.BytesPerSecond), max(0, r.ETASeconds)
	}
	return out
}

// percent is of the bytes, or of the files if there are no bytes; it is 100 only for a complete replica.
func percent(p *flexlvmv1.Progress, complete bool) int32 {
	done, total := p.Bytes, p.BytesTotal
	if total == 0 {
		done, total = p.Files, p.FilesTotal
	}
	switch {
	case complete:
		return 100
	case total <= 0:
		return 0
	}
	return int32(max(0, min(99, float64(done)/float64(total)*100)))
}

// terminated returns how a loader's container ended; nil if it has not.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	if pod == nil {
		return nil
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == loader {
			return c.State.Terminated
		}
	}
	return nil
}

// reportOf returns the result that a loader left when it ended; nil if it left none.
func reportOf(pod *corev1.Pod) *protocol.Status {
	at := terminated(pod)
	if at == nil {
		return nil
	}
	out := &protocol.Status{}
	if err := json.Unmarshal([]byte(at.Message), out); err != nil {
		return nil // the message is the end of a log: see lastWords
	}
	out.Message = clip(out.Message)
	return out
}

// maxMessage bounds how much of a loader's message goes into a status: enough for any message of flexlvm's
// loader; another program may send anything.
const maxMessage = 1024

func clip(message string) string {
	return volume.Clip(message, maxMessage, " …")
}

// lastWords returns the last lines of a log. A loader that leaves no result has the end of its log as
// termination message. Progress lines, which are JSON, do not explain the failure, and the first line may be
// cut off.
func lastWords(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "{") && !strings.HasSuffix(line, "}") {
			lines = append(lines, line)
		}
	}
	words := strings.Join(lines, "; ")
	if len(words) <= maxMessage {
		return words
	}
	return "… " + strings.ToValidUTF8(words[len(words)-maxMessage:], "")
}

// loadedReport returns the report that was recorded when a replica became complete.
func loadedReport(claim *corev1.PersistentVolumeClaim) *protocol.Status {
	out := &protocol.Status{}
	if err := json.Unmarshal([]byte(claim.Annotations[annotationLoaded]), out); err != nil {
		return &protocol.Status{State: protocol.StateComplete} // somebody overwrote it; the counts are lost
	}
	return out
}

// jobResult reports whether and how a Job has ended. A failing Job counts as failed only when its pods have ended,
// and so nothing writes the volume.
func jobResult(job *batchv1.Job) (succeeded, failed bool, why string) {
	if job == nil {
		return false, false, ""
	}
	c := jobEndCondition(job)
	switch {
	case c == nil:
		return false, false, ""
	case c.Type == batchv1.JobComplete:
		return true, false, ""
	}
	return false, true, strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
}

// jobEndCondition returns the condition of a Job that says that it has ended; nil if it has not.
func jobEndCondition(job *batchv1.Job) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if c := &job.Status.Conditions[i]; c.Status == corev1.ConditionTrue && isEndCondition(*c) {
			return c
		}
	}
	return nil
}

// isEndCondition reports whether a condition is of the types that say that a Job has ended.
func isEndCondition(c batchv1.JobCondition) bool {
	return c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed
}

// maxLag is how much later than the end of a Job the end of its pod may be observed.
const maxLag = 30 * time.Second

// asOfPods returns a Job as if it had not ended if its last pod has not been observed to end in the same way:
// each kind of object is watched separately, and the pod holds the result, such as a revision or the reason of
// a failure.
func asOfPods(job *batchv1.Job, pods []*corev1.Pod, now time.Time) (seen *batchv1.Job, lags bool) {
	at := jobEndTime(job)
	if at.IsZero() || now.Sub(at).Abs() > maxLag { // also if the Job's clock is ahead
		return job, false
	}
	last := newestPod(pods)
	if succeeded, _, _ := jobResult(job); last != nil && (last.Status.Phase == corev1.PodSucceeded || !succeeded && last.Status.Phase == corev1.PodFailed) {
		return job, false
	}
	job = job.DeepCopy()
	job.Status.Conditions = slices.DeleteFunc(job.Status.Conditions, isEndCondition)
	return job, true
}

// jobEndTime returns when a Job ended; the zero time if it has not.
func jobEndTime(job *batchv1.Job) time.Time {
	if c := jobEndCondition(job); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// longAhead is how far in the future a time may be and still count: clocks of nodes differ. A later time is
// from a clock that was wrong, and may be of any day.
const longAhead = 10 * time.Minute

// longAgo stands for an unknown time: anything due some time after it is due now.
var longAgo = time.Unix(0, 0)

// jobEndByOwnClock returns when an ended Job ended, by this controller's clock. Other clocks set the Job's own times,
// and one that stays wrong must not make the Job appear to have ended long ago in every pass. So an end before this
// controller created the Job, or in the future, counts as that creation; and if that is in the future too, as longAgo.
func jobEndByOwnClock(job *batchv1.Job, now time.Time) time.Time {
	at, made := jobEndTime(job), timeOf(job, annotationMade)
	if made.After(at) && !made.After(now) {
		return made
	}
	return clampFuture(at, made, now)
}

// clampFuture returns at, but no future time: now if at is ahead, or otherwise if at is ahead by more than maxLag;
// longAgo if that is ahead by more than longAhead.
func clampFuture(at, otherwise, now time.Time) time.Time {
	if at.Sub(now) > maxLag {
		at = otherwise
	}
	switch {
	case at.Sub(now) > longAhead:
		return longAgo
	case at.After(now):
		return now
	}
	return at
}

// failure returns why a Job failed, in the loader's own words if there are any.
func failure(pod *corev1.Pod, why string) string {
	if report := reportOf(pod); report != nil && report.Message != "" {
		return report.Message
	}
	words := ""
	if at := terminated(pod); at != nil {
		why, words = cmp.Or(why, at.Reason), lastWords(at.Message)
	}
	if words == "" {
		return "the loader ended without a message (" + why + "); see kubectl describe job, and the logs of its pods"
	}
	return "the loader ended without a result (" + why + "); see the logs of its pods, which end with: " + words
}

// whyIdle returns why a wanted loader does not work now; empty if it works.
func whyIdle(pod *corev1.Pod) string {
	switch {
	case pod == nil || pod.Status.Phase == corev1.PodPending:
		return whyWaiting(pod)
	case pod.Status.Phase == corev1.PodFailed:
		if !hasLoaderStarted(pod) || wasInterrupted(pod) {
			return couldNotRun(pod) + "; it is retried"
		}
		return "its loader is retried; the last time: " + failure(pod, pod.Status.Reason)
	}
	return ""
}

// whyWaiting returns what a pod that does not run waits for.
func whyWaiting(pod *corev1.Pod) string {
	if pod == nil {
		return "its loader's pod does not exist yet"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "its loader cannot be scheduled: " + c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return "its loader is not running yet: " + strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	if pod.Spec.NodeName == "" {
		return "its loader waits for a node"
	}
	return "its loader is starting on " + pod.Spec.NodeName
}

func ready(pod *corev1.Pod) bool {
	if pod == nil || pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isDeleting(object client.Object) bool { return object.GetDeletionTimestamp() != nil }

func (s *Observed) hash() string { return hash(s.Owner, s.Config.ID) }

func (s *Observed) label() string { return replica.NodeLabel(s.hash()) }

func (s *Observed) task(index int, claim *corev1.PersistentVolumeClaim) task {
	return task{
		owner: s.Owner, config: s.Config, source: s.Source, image: s.Image, index: index, claim: claim,
		attempt: attempt(s.Owner, s.Config, s.Source, index), made: s.Now, refreshRequest: s.refreshRequest(), versions: s.versioned(),
	}
}

// uploadTask returns the task of uploading a claim. Its attempt differs for each generation of the spec: an
// upload for an earlier release does not have the current content.
func (s *Observed) uploadTask(index int, claim *corev1.PersistentVolumeClaim) task {
	out := s.task(index, claim)
	out.attempt, out.watch = digest(out.attempt, s.Owner.Generation, claim.UID), s.watch()
	return out
}

// watch returns the value of annotationWatch for an upload that begins now.
func (s *Observed) watch() string { return s.Watched.UTC().Format(time.RFC3339Nano) }
