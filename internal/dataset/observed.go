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

// Observed is all that is known about one volume of a VolumeManager: what is wanted, and
// what there is.
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
	Door           pv.Door // by which consumers reach it

	// Offer is what another namespace offers, of a volume that is shared by one; Serving is on
	// how many nodes it is. SharedBy are the claims by which other namespaces read this one.
	Offer    *Offer
	Serving  int
	SharedBy []client.ObjectKey
	// shares are the PersistentVolumes of those claims. Withdrawn is what goes of both, as the
	// volume is not offered to their namespaces any more.
	shares    []*corev1.PersistentVolume
	Withdrawn []client.Object

	Replicas  map[int]*Replica
	UploadJob *batchv1.Job // that uploads
	UploadPod *corev1.Pod
	// UploadRefused is as Replica.Refused.
	UploadRefused string
	Readers       Readers
	// Labelled are the nodes that carry the dataset's label.
	Labelled []string
	// Fitting are the nodes that may have replicas. Matching are those that match the
	// nodeAffinity, Barred those that do not. A node that does not match is not in Barred
	// while it is new, nor after it is gone from the API.
	Fitting, Matching, Barred map[string]bool
	// ReadOn are the pods that use the volume, by their nodes; nil if they were not looked up.
	// They are if a replica is to leave its node, is deleted before it was uploaded, or may
	// be displaced.
	ReadOn map[string][]string
	// InUse are the same pods; also looked up before a release that uploads.
	InUse []string
	// Began is since when this controller has watched.
	Began, Now time.Time
	// Watched is since when this controller has looked for the pods that use the volume, without a
	// pause; before a release that uploads.
	Watched time.Time
}

// Readers are the claim of all consumers and its PersistentVolume; nil if there is none.
type Readers struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// Replica is what exists of one replica; fields are nil if there is none.
type Replica struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	Node   string // that the volume lies on
	Job    *batchv1.Job
	Pod    *corev1.Pod // the last of the Job
	// Earlier are all pods of the Job, as long as Kubernetes keeps them.
	Earlier []*corev1.Pod
	// Lags: the Job has ended, and its pod is not seen to have: see asOfPods.
	Lags bool
	// NodeNotReady: Pod has not ended, and its node has not been ready for a while.
	NodeNotReady bool
	// Refused is why the API server takes no pod of the Job, such as a quota's words.
	Refused string
	Report  *protocol.Status // what its loader says now
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

// percent is of the bytes, or of the files where there are no bytes; never 100 before
// the end.
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

// terminated is how a loader's container ended; nil where it has not.
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

// reportOf is the result that a loader which has ended left behind; nil where it left
// none.
func reportOf(pod *corev1.Pod) *protocol.Status {
	at := terminated(pod)
	if at == nil {
		return nil
	}
	out := &protocol.Status{}
	if err := json.Unmarshal([]byte(at.Message), out); err != nil {
		return nil // it is the end of a log: see lastWords
	}
	out.Message = clip(out.Message)
	return out
}

// mostMessage is how much of a loader's words goes into a status: enough for any
// sentence of ours, and no more of what something else may say in its stead.
const mostMessage = 1024

func clip(message string) string {
	return volume.Clip(message, mostMessage, " …")
}

// lastWords are the end of the log of a loader that left no result, which kubelet gives
// then. Its progress, which is JSON, says nothing of why; the first line may lack its
// beginning.
func lastWords(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "{") && !strings.HasSuffix(line, "}") {
			lines = append(lines, line)
		}
	}
	words := strings.Join(lines, "; ")
	if len(words) <= mostMessage {
		return words
	}
	return "… " + strings.ToValidUTF8(words[len(words)-mostMessage:], "")
}

// loadedReport is what was said of a replica when it became complete.
func loadedReport(claim *corev1.PersistentVolumeClaim) *protocol.Status {
	out := &protocol.Status{}
	if err := json.Unmarshal([]byte(claim.Annotations[annotationLoaded]), out); err != nil {
		return &protocol.Status{State: protocol.StateComplete} // somebody wrote over it; how much it was is lost
	}
	return out
}

// end reports whether and how a Job has ended. A Job that is about to fail counts as
// failed only when its pods have ended, and with it nothing writes the volume.
func end(job *batchv1.Job) (succeeded, failed bool, why string) {
	if job == nil {
		return false, false, ""
	}
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			return true, false, ""
		case batchv1.JobFailed:
			return false, true, strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		}
	}
	return false, false, ""
}

// mostLag is how much later than the end of a Job that of its pod may be seen.
const mostLag = 30 * time.Second

// asOfPods is a Job as if it had not ended yet, where its last pod is not seen, or not seen to
// have ended as the Job has: each kind of object is watched on its own, and the pod holds the
// result, such as a revision, or why it failed.
func asOfPods(job *batchv1.Job, pods []*corev1.Pod, now time.Time) (seen *batchv1.Job, lags bool) {
	at := ended(job)
	if at.IsZero() || now.Sub(at).Abs() > mostLag { // also where its clock is ahead
		return job, false
	}
	last := youngest(pods)
	if succeeded, _, _ := end(job); last != nil && (last.Status.Phase == corev1.PodSucceeded || !succeeded && last.Status.Phase == corev1.PodFailed) {
		return job, false
	}
	job = job.DeepCopy()
	job.Status.Conditions = slices.DeleteFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed
	})
	return job, true
}

// ended is when a Job ended; the zero time where it has not.
func ended(job *batchv1.Job) time.Time {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// longAhead is how far in the future a time may lie and be waited for: clocks of nodes differ. What lies
// further there is of a clock that was wrong, and may be of any day.
const longAhead = 10 * time.Minute

// longAgo stands for a time that is not known: what is due some time after it is due now.
var longAgo = time.Unix(0, 0)

// endedBy is when a Job ended that has ended, by the clock of this controller. Its end and its creation go by the
// clocks of others, and one that differs for good must not make it look as if it had ended long ago, at each look. So an
// end before this controller made the Job, or in the future, counts as the moment in which it did, or in which the Job of an
// earlier release was created; it is longAgo if that lies in the future, too.
func endedBy(job *batchv1.Job, now time.Time) time.Time {
	at, made := ended(job), timeOf(job, annotationMade)
	switch {
	case made.IsZero():
		made = job.CreationTimestamp.Time
	case made.After(at) && !made.After(now):
		return made
	}
	return past(at, made, now)
}

// past is a time that cannot lie in the future: now if it does, or otherwise if it does by more than
// mostLag; longAgo if that is of a clock that was wrong, too.
func past(at, otherwise, now time.Time) time.Time {
	if at.Sub(now) > mostLag {
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

// failure is why a Job failed, in its loader's own words where there are any.
func failure(pod *corev1.Pod, why string) string {
	if report := reportOf(pod); report != nil && report.Message != "" {
		return report.Message
	}
	words := ""
	if at := terminated(pod); at != nil {
		why, words = cmp.Or(why, at.Reason), lastWords(at.Message)
	}
	if words == "" {
		return "the loader ended without a word (" + why + "); see kubectl describe job, and the logs of its pods"
	}
	return "the loader ended without a result (" + why + "); see the logs of its pods, which end with: " + words
}

// idle says why a loader that is wanted does not work now; empty where it does.
func idle(pod *corev1.Pod) string {
	switch {
	case pod == nil || pod.Status.Phase == corev1.PodPending:
		return waiting(pod)
	case pod.Status.Phase == corev1.PodFailed:
		if !hasRun(pod) {
			return couldNotRun(pod) + "; it is tried again"
		}
		return "its loader is tried again; the last time: " + failure(pod, pod.Status.Reason)
	}
	return ""
}

// waiting is what a pod that does not run waits for.
func waiting(pod *corev1.Pod) string {
	if pod == nil {
		return "its loader's pod is not there yet"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node takes its loader: " + c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return "its loader does not run yet: " + strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	if pod.Spec.NodeName == "" {
		return "its loader waits for a node"
	}
	return "its loader starts on " + pod.Spec.NodeName
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

func going(object client.Object) bool { return object.GetDeletionTimestamp() != nil }

// hash of the dataset.
func (s *Observed) hash() string { return hash(s.Owner, s.Config.ID) }

func (s *Observed) label() string { return replica.NodeLabel(s.hash()) }

func (s *Observed) task(index int, claim *corev1.PersistentVolumeClaim) task {
	return task{
		owner: s.Owner, config: s.Config, source: s.Source, image: s.Image, index: index, claim: claim,
		attempt: attempt(s.Owner, s.Config, s.Source, index), made: s.Now, asked: s.asked(), versions: s.versioned(),
	}
}

// uploadTask is the task of uploading a claim. It is another for each spec: what was
// uploaded when the volume was to be released before is not what is in it now.
func (s *Observed) uploadTask(index int, claim *corev1.PersistentVolumeClaim) task {
	out := s.task(index, claim)
	out.attempt, out.watch = digest(out.attempt, s.Owner.Generation, claim.UID), s.watch()
	return out
}

// watch is the value of annotationWatch of an upload that begins now.
func (s *Observed) watch() string { return s.Watched.UTC().Format(time.RFC3339Nano) }
