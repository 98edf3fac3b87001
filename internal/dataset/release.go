package dataset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// planReaders plans the claim of all consumers and its PersistentVolume, and creates them again if they can no longer
// serve. The two name each other. The claim comes first: if its name is already used, no PersistentVolume may
// exist that another claim could bind.
func (p *planner) planReaders() {
	volume, claim := p.Readers.Volume, p.Readers.Claim
	offer := p.own()
	if p.Offer != nil {
		offer = *p.Offer
	}
	switch {
	case volume != nil && (p.isUnusable(volume) || isDeleting(volume)):
		p.out.Status.Message = "its claim for consumers is being created again"
		p.deleteReaders()
	case claim != nil && (isDeleting(claim) || claim.Status.Phase == corev1.ClaimLost):
		p.out.Status.Message = "its claim for consumers is being created again"
		p.deleteReaders()
	default:
		if claim == nil {
			p.do(Action{Verb: Create, Object: readersClaim(p.Owner, p.Config, offer.Source)})
		}
		if volume == nil {
			p.do(Action{Verb: Create, Object: readersVolume(p.Owner, p.Config, offer, p.Cluster)})
		}
	}
}

// isUnusable reports whether a PersistentVolume can no longer be bound by any claim, or leads to another share or
// dataset than the spec asks for.
func (p *planner) isUnusable(volume *corev1.PersistentVolume) bool {
	other := p.Source.NFS == nil && volume.Spec.NFS != nil || p.Source.NFS != nil && (volume.Spec.NFS == nil || *volume.Spec.NFS != *p.Source.NFS ||
		!slices.Contains(volume.Spec.AccessModes, p.Config.AccessMode))
	other = other || p.Offer != nil && !leadsTo(volume, *p.Offer) || p.Offer == nil && volume.Labels[replica.LabelShared] != ""
	return other || volume.Status.Phase == corev1.VolumeReleased || volume.Status.Phase == corev1.VolumeFailed
}

// deleteReaders deletes the readers' claim, and once that is gone their PersistentVolume. It reports whether
// both are gone. While a pod uses the claim, Kubernetes keeps it, and so the PersistentVolume and all replicas
// stay.
func (p *planner) deleteReaders() bool {
	claim, volume := p.Readers.Claim, p.Readers.Volume
	switch {
	case claim != nil:
		if !isDeleting(claim) {
			p.do(Action{Verb: Delete, Object: claim})
		}
		return false
	case volume != nil:
		if !isDeleting(volume) {
			p.do(Action{Verb: Delete, Object: volume})
		}
		return false
	}
	return true
}

// planRelease plans the release of the volume: first the nodes lose the label, so that no more pods come, then the
// content is uploaded, then the consumers' claim is deleted, then the replicas, and with them the Job of an upload of
// what consumers wrote. The status records the upload before the first of these is deleted. Evictions that have begun
// do not wait for any of that.
func (p *planner) planRelease() {
	p.requeueAfter(whileLoading)
	p.out.Status.Message = "is released"
	switch {
	case p.planDropped(), p.planHeldClaim():
		p.evict()
	case len(p.Labelled) > 0:
		for _, node := range p.Labelled {
			p.do(Action{Verb: Unlabel, Node: node, Key: p.label()})
		}
	case !p.planEndOfUse():
		p.evict() // pods that keep the rest, or an upload that fails, may do so forever
	default:
		p.releaseReplicas()
		if len(p.out.Status.Nodes) == 0 && p.UploadJob == nil {
			p.out.Gone, p.out.Status.Message, p.out.RequeueAfter = true, "released"+p.notUploaded(), whileIdle
		}
	}
}

// planEndOfUse plans the upload of the volume's content, and then the deletion of the consumers' claim. It reports
// whether both are done and no pod of another namespace uses the volume.
func (p *planner) planEndOfUse() bool {
	if p.Upload && !p.ensureUploaded() {
		return false
	}
	// The upload's Job records since when pods may have written more. It is deleted when no pod can write any
	// more.
	if _, from := p.uploadFrom(); !p.Upload || from == nil || !p.isWritable(from.Claim) {
		p.deleteUploadJob()
	}
	if !p.deleteReaders() {
		p.out.Status.Message = "is released as soon as no pod uses claim " + replica.ReadersClaim(p.Owner.Name, p.Config.ID) +
			"; pods that have ended count, too: delete them, or their Jobs"
		return false
	}
	if len(p.SharedBy) > 0 {
		p.out.Status.Message = "is released as soon as no pod of another namespace uses it any more, by claim " + firstOf(p.sharedClaims())
		return false
	}
	return true
}

// releaseReplicas releases all replicas.
func (p *planner) releaseReplicas() {
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || (r.Claim == nil && r.Job == nil) {
			continue
		}
		p.out.Status.Nodes = append(p.out.Status.Nodes, flexlvmv1.ReplicaStatus{
			Claim: replicaName(p.Owner.Name, p.Config.ID, index), Node: r.Node, State: flexlvmv1.ReplicaLeaving,
		})
		p.delete(r, "", "")
	}
}

// planHeldClaim plans what becomes of a claim whose content a mirror may not have uploaded, and reports whether it did. A
// claim that is not being deleted is left to the volume's upload, if there is one. Where to upload its content is unknown
// while the spec does not name the volume.
func (p *planner) planHeldClaim() bool {
	r := p.firstHeld()
	switch {
	case r == nil || p.Upload && !isDeleting(r.Claim):
		return false
	case isDeleting(r.Claim) && p.isUploadSure(r):
		p.out.Status.Uploaded = p.wasUploaded() // the removal may be repeated, and the last message says whether it was uploaded
		p.do(Action{Verb: RemoveFinalizer, Object: r.Claim})
		return true
	case isDeleting(r.Claim):
		status := flexlvmv1.ReplicaStatus{Claim: r.Claim.Name, Node: r.Node}
		p.out.Status.Message = ""
		p.planMirroredDeletion(r, &status)
		p.out.Status.Nodes = append(p.out.Status.Nodes, status)
		return true
	}
	p.out.Failed, p.out.RequeueAfter = true, whileIdle
	p.out.Status.Message = fmt.Sprintf("the spec no longer says where to upload the content of claim %s, so it is kept: add the volume again as it was, or remove the finalizer %s from the claim to give its content up", r.Claim.Name, finalizerMirror)
	return true
}

const nothingUploaded = "nothing was uploaded"

// notUploaded returns the note on a volume whose upload was asked for and that had nothing to upload: an
// incomplete replica holds only what its source has. A volume that was released for an earlier spec keeps its
// earlier note.
func (p *planner) notUploaded() string {
	old := p.before()
	if !p.Upload || p.out.Status.Uploaded != "" ||
		p.Owner.Status.State == flexlvmv1.StateCompleted && !strings.Contains(old.Message, nothingUploaded) {
		return ""
	}
	because := "no complete replica holds what the volume asks for; the source still has its data"
	if p.Source.Writable() {
		because = "there was no volume"
	}
	return fmt.Sprintf("; %s to %s, because %s", nothingUploaded, p.Source.Target(), because)
}

// ensureUploaded reports whether the content of the volume is at its target, and plans the upload otherwise.
// While pods may write to the volume, the status does not count without the upload's Job, which alone shows
// what they may have written since.
func (p *planner) ensureUploaded() bool {
	index, from := p.uploadFrom()
	was := p.wasUploaded()
	if from == nil {
		p.out.Status.Uploaded = p.before().Uploaded // nothing was written since, whatever the spec was
		return true
	}
	if was != "" && !p.isWritable(from.Claim) && (isDeleting(from.Claim) || len(p.Consumers) == 0) {
		p.out.Status.Uploaded = was
		return true
	}
	return p.planUpload(index, from)
}

// wasUploaded returns the target that the status records for the current spec. An upload for an earlier spec
// does not count: consumers may have written since.
func (p *planner) wasUploaded() string {
	if p.Owner.Status.ObservedGeneration != p.Owner.Generation {
		return ""
	}
	return p.before().Uploaded
}

// before returns the current status of the volume, which this plan replaces.
func (s *Observed) before() flexlvmv1.VolumeStatus {
	for _, v := range s.Owner.Status.Volumes {
		if v.ID == s.Config.ID {
			return v
		}
	}
	return flexlvmv1.VolumeStatus{}
}

// planUpload plans the Job that uploads the content of a replica, and reports whether the content is at its
// target. Nothing is deleted before that, and after a failure only a person can give up the content.
func (p *planner) planUpload(index int, from *Replica) bool {
	if isDeleting(from.Claim) || from.Claim.Status.Phase == corev1.ClaimLost {
		p.out.Failed = true
		p.out.Status.Message = fmt.Sprintf("cannot be uploaded to %s: claim %s is being deleted or has lost its PersistentVolume%s", p.Source.Target(), from.Claim.Name, giveUpAdvice(from))
		return false
	}
	if !p.isOfSpec(index, from) {
		return false
	}
	task := p.uploadTask(index, from.Claim)
	succeeded, failed, why := jobResult(p.UploadJob)
	status := flexlvmv1.ReplicaStatus{State: flexlvmv1.ReplicaUploading, Claim: from.Claim.Name, Node: from.Node}
	switch {
	case len(p.Consumers) > 0:
		// An upload that has begun may miss what these pods write.
		p.out.Status.Message = "is uploaded as soon as no pod uses it; pods that use it: " + firstOf(p.Consumers)
		p.deleteUploadJob()
		return false
	case p.UploadJob == nil && p.deleteLoader(from):
		p.out.Status.Message = "is uploaded as soon as its loader has ended"
	case p.UploadJob == nil:
		p.out.Status.Message = "is uploaded to " + p.Source.Target()
		p.do(Action{Verb: Create, Object: task.upload()})
	case isDeleting(p.UploadJob) || p.UploadJob.Annotations[annotationAttempt] != task.attempt:
		// Even a successful Job is deleted: it uploaded something else.
		p.out.Status.Message = "is uploaded again to " + p.Source.Target()
		p.deleteUploadJob()
	case succeeded && !p.wasWatched(from):
		p.out.Status.Message = "is uploaded again to " + p.Source.Target() + ", because pods were not observed for a while since the last upload began, and one may have written in that time"
		p.deleteUploadJob()
	case succeeded:
		p.out.Status.Uploaded, p.out.Status.Message = p.Source.Target(), "was uploaded to "+p.Source.Target()
		p.requeueAfter(afterAction)
		return p.wasUploaded() != "" // nothing is deleted before the status records the upload
	case failed:
		p.uploadFailed(from, &status, why)
	default:
		p.out.Status.Message = "is uploaded to " + p.Source.Target()
		if status.Message = refusedOr(p.UploadRefused, p.UploadPod); status.Message != "" {
			p.out.Status.Message += "; " + status.Message + giveUpAdvice(from)
		}
	}
	p.out.Status.Nodes = append(p.out.Status.Nodes, status)
	return false
}

// wasWatched reports whether this process has listed pods, without a pause, since before the upload began. A
// pod that wrote, ended and was deleted between two lists leaves no trace. A running upload is not aborted for
// that: what it has sent is not sent again, and a controller that restarts again and again must not prevent
// progress.
func (p *planner) wasWatched(from *Replica) bool {
	return !p.isWritten(from.Claim) || p.UploadJob.Annotations[annotationWatch] == p.watch()
}

// isUploadSure reports whether the upload that the status records has all that pods can have written to a claim that
// somebody else deletes. No new pod can mount the claim, so the upload cannot be repeated.
func (p *planner) isUploadSure(from *Replica) bool {
	succeeded, _, _ := jobResult(p.UploadJob)
	return succeeded && p.wasUploaded() != "" && len(p.Consumers) == 0 && p.wasWatched(from)
}

// deleteLoader deletes the Job of a loader that still works on a replica, and reports whether there is one.
func (p *planner) deleteLoader(from *Replica) bool {
	if from.Job == nil || !jobEndTime(from.Job).IsZero() {
		return from.Busy
	}
	if !isDeleting(from.Job) {
		p.do(Action{Verb: Delete, Object: from.Job})
	}
	return true
}

// uploadFailed handles a failed upload Job. A Job whose loader never ran, or was interrupted, is recreated.
func (p *planner) uploadFailed(from *Replica, status *flexlvmv1.ReplicaStatus, why string) {
	if !hasLoaderStarted(p.UploadPod) || wasInterrupted(p.UploadPod) {
		status.Message = couldNotRun(p.UploadPod) + "; it is retried"
		p.out.Status.Message = "is uploaded to " + p.Source.Target() + "; " + status.Message + giveUpAdvice(from)
		p.recreateLater(p.UploadJob)
		return
	}
	p.out.Failed, status.State = true, flexlvmv1.ReplicaFailed
	status.Message = failure(p.UploadPod, why)
	p.out.Status.Message = "cannot be uploaded to " + p.Source.Target() + ", so it is kept: " + status.Message + giveUpAdvice(from)
}

// giveUpAdvice returns how to give up the content of a claim that waits for its upload; empty if it does not wait.
func giveUpAdvice(r *Replica) string {
	if !isHeld(r.Claim) {
		return ""
	}
	return fmt.Sprintf("; to give its content up, delete claim %s and remove the finalizer %s from it", r.Claim.Name, finalizerMirror)
}

// isOfSpec reports whether a mirrored replica holds what the spec names. If not, its source is no longer known.
func (p *planner) isOfSpec(index int, from *Replica) bool {
	if !p.Source.Mirror || p.isOfLoad(from, annotationLoad, index) {
		return true
	}
	p.out.Failed = true
	p.out.Status.Message = fmt.Sprintf("cannot be uploaded to %s, so it is kept: claim %s holds what the volume asked for earlier; undo that change%s", p.Source.Target(), from.Claim.Name, giveUpAdvice(from))
	return false
}

func (p *planner) deleteUploadJob() {
	if p.UploadJob != nil && !isDeleting(p.UploadJob) {
		p.do(Action{Verb: Delete, Object: p.UploadJob})
	}
}

// uploadFrom returns the first replica whose volume consumers could have written, or at least read; nil if
// there is none. A writable volume may be mounted before it is complete. Content that consumers only read and
// that is of another source is not uploaded.
func (p *planner) uploadFrom() (int, *Replica) {
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || r.Claim == nil {
			continue
		}
		written := p.isWritten(r.Claim) && r.Claim.Status.Phase != corev1.ClaimPending
		read := !isDeleting(r.Claim) && p.isOfLoad(r, replica.AnnotationComplete, index)
		if written || read {
			return index, r
		}
	}
	return 0, nil
}
