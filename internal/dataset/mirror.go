package dataset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// whileMirroring is how often a mirror is asked how far behind it is.
const whileMirroring = 10 * time.Second

// finalPasses is how many passes over the directory a mirror must complete after the last pod stopped using the
// volume: the first of them may have begun before that.
const finalPasses = 2

// isHeld reports whether a claim waits for the upload of its content.
func isHeld(claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && slices.Contains(claim.Finalizers, finalizerMirror)
}

// isDeletedBeforeUpload reports whether a claim is being deleted although its content may not be uploaded yet.
func isDeletedBeforeUpload(r *Replica) bool {
	return r != nil && isHeld(r.Claim) && isDeleting(r.Claim)
}

// anyHeld reports whether any claim of the volume waits for an upload (isHeld).
func (s *Observed) anyHeld() bool {
	for _, r := range s.Replicas {
		if isHeld(r.Claim) {
			return true
		}
	}
	return false
}

// planMirror plans a loader that keeps running and uploads what changes in a complete replica.
func (p *planner) planMirror(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if !isHeld(r.Claim) {
		p.do(Action{Verb: AddFinalizer, Object: r.Claim})
	}
	if status.State != flexlvmv1.ReplicaComplete {
		return
	}
	p.requeueAfter(whileMirroring)
	task := p.task(index, r.Claim)
	// The attempt includes the image: the Job never ends by itself, so after an upgrade its old image could one
	// day be gone, and nothing would be uploaded. It excludes the checksum, which only loads verify.
	source := p.Source
	source.Checksum = ""
	task.attempt = digest(attempt(p.Owner, p.Config, source, index), roleMirror, task.image)
	switch {
	case r.Job == nil && r.Busy:
		status.Message = "its last loader has not ended yet"
	case r.Job == nil:
		p.do(Action{Verb: Create, Object: task.mirror()})
		p.requeueAfter(whileLoading)
	case isDeleting(r.Job):
		p.requeueAfter(whileLoading)
	case r.Job.Labels[labelRole] != roleMirror || r.Job.Annotations[annotationClaimUID] != string(r.Claim.UID) ||
		r.Job.Annotations[annotationAttempt] != task.attempt || !jobEndTime(r.Job).IsZero():
		p.do(Action{Verb: Delete, Object: r.Job})
		p.requeueAfter(whileLoading)
	}
	p.out.Status.Upload = p.lag(r)
}

// mirrorReport returns the report of the mirror of this claim; nil if there is none. The pod's address may
// already belong to another pod.
func mirrorReport(r *Replica) *protocol.Status {
	if r.Report == nil || r.Claim == nil || r.Report.ID != string(r.Claim.UID) || r.Report.State != protocol.StateMirroring {
		return nil
	}
	return r.Report
}

// lag returns how far the upload of a replica is behind, as far as that is known.
func (p *planner) lag(r *Replica) *flexlvmv1.UploadLag {
	out := &flexlvmv1.UploadLag{To: p.Source.Target()}
	report := mirrorReport(r)
	waits := refusedOr(r.Refused, r.Pod)
	switch old := p.before().Upload; {
	case report != nil:
		out.Files, out.Bytes = max(0, report.FilesTotal-report.FilesDone), max(0, report.BytesTotal-report.BytesDone)
		out.Message, out.Known = report.Message, true
	case waits == "" && old != nil: // too busy to answer: no further behind than before
		return old
	default:
		out.Message = waits
	}
	return out
}

// planMirroredDeletion plans a mirrored claim that is being deleted: the claim is released once its content is
// uploaded and no pod can write any more. No new pod can mount it, so if its mirror has ended, only a person
// can decide.
func (p *planner) planMirroredDeletion(r *Replica, status *flexlvmv1.ReplicaStatus) {
	p.requeueAfter(whileLoading)
	status.State = flexlvmv1.ReplicaUploading
	report, final := mirrorReport(r), r.Claim.Annotations[annotationFinal]
	setFinal := func(value string) {
		if final != value {
			p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationFinal: value}})
		}
	}
	switch {
	case r.Claim.Status.Phase == corev1.ClaimPending || r.Volume == nil && r.Claim.Status.Phase == corev1.ClaimLost:
		status.Message = "its claim is released: it has no volume"
		p.do(Action{Verb: RemoveFinalizer, Object: r.Claim})
	case r.Job == nil || r.Job.Labels[labelRole] != roleMirror || r.Pod == nil || r.Pod.Status.Phase != corev1.PodRunning:
		p.out.Failed, status.State = true, flexlvmv1.ReplicaFailed
		status.Message = fmt.Sprintf("claim %s is being deleted, its content may not be uploaded, and no new pod can mount it; copy the data from the node, or give it up by removing the finalizer %s from the claim", r.Claim.Name, finalizerMirror)
	case len(p.Consumers) > 0:
		status.Message = "its claim is released as soon as no pod uses it and its content is uploaded; pods that use it: " + firstOf(p.Consumers)
		setFinal("")
	case report == nil:
		status.Message = "its claim is released as soon as its mirror reports that its content is uploaded"
	case !passedSince(report, final):
		status.Message = strings.TrimSuffix("its claim is released as soon as its content is uploaded: "+report.Message, ": ")
		if run, _, _ := strings.Cut(final, "/"); run != report.Run {
			setFinal(fmt.Sprintf("%s/%d", report.Run, report.Passes))
		}
	default:
		status.Message = "its claim is released: its content was uploaded to " + p.Source.Target()
		p.do(Action{Verb: RemoveFinalizer, Object: r.Claim}, Action{Verb: Delete, Object: r.Job})
	}
	if p.out.Status.Message == "" {
		p.out.Status.Message = status.Claim + ": " + status.Message
	}
}

// passedSince reports whether the mirror is still the one that final names, and has compared all files and
// found everything uploaded since final was recorded.
func passedSince(report *protocol.Status, final string) bool {
	run, text, _ := strings.Cut(final, "/")
	passes, err := strconv.ParseInt(text, 10, 64)
	return err == nil && run != "" && run == report.Run && report.Final == final && report.Passes >= passes+finalPasses && report.FilesDone >= report.FilesTotal
}

// firstHeld returns the first replica whose claim waits for an upload (isHeld); nil if there is none.
func (p *planner) firstHeld() *Replica {
	for _, index := range p.indexes() {
		if r := p.Replicas[index]; r != nil && isHeld(r.Claim) {
			return r
		}
	}
	return nil
}
