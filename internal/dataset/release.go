package dataset

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// readers makes the claim of all consumers and its PersistentVolume, and makes them
// anew where they cannot serve any more. The two name each other, and the claim comes
// first: where its name is taken there must be nothing that another claim could bind.
func (p *planner) readers() {
	volume, claim := p.Readers.Volume, p.Readers.Claim
	offer := p.own()
	if p.Offer != nil {
		offer = *p.Offer
	}
	switch {
	case volume != nil && (p.spent(volume) || going(volume)):
		p.out.Status.Message = "its claim for consumers is made anew"
		p.deleteReaders()
	case claim != nil && (going(claim) || claim.Status.Phase == corev1.ClaimLost):
		p.out.Status.Message = "its claim for consumers is made anew"
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

// spent tells of a PersistentVolume that no claim can have any more, or that leads to
// another share or dataset than is asked for.
func (p *planner) spent(volume *corev1.PersistentVolume) bool {
	other := p.Source.NFS == nil && volume.Spec.NFS != nil || p.Source.NFS != nil && (volume.Spec.NFS == nil || *volume.Spec.NFS != *p.Source.NFS ||
		!slices.Contains(volume.Spec.AccessModes, p.Config.AccessMode))
	other = other || p.Offer != nil && !leadsTo(volume, *p.Offer) || p.Offer == nil && volume.Labels[replica.LabelShared] != ""
	return other || volume.Status.Phase == corev1.VolumeReleased || volume.Status.Phase == corev1.VolumeFailed
}

// deleteReaders deletes the readers' claim, and once that is gone their PersistentVolume. It reports
// whether neither is left. While a pod uses the claim, Kubernetes keeps it, and then the
// PersistentVolume stays, and all replicas.
func (p *planner) deleteReaders() bool {
	claim, volume := p.Readers.Claim, p.Readers.Volume
	switch {
	case claim != nil:
		if !going(claim) {
			p.do(Action{Verb: Delete, Object: claim})
		}
		return false
	case volume != nil:
		if !going(volume) {
			p.do(Action{Verb: Delete, Object: volume})
		}
		return false
	}
	return true
}

// release takes everything back: no pod may come any more, then what consumers leave
// is uploaded, then the consumers' claim goes, then the replicas, and the Job that
// uploaded what consumers wrote last. That they were uploaded is in the status before
// the first of them goes. Replicas that are to be evicted do not wait for any of that.
func (p *planner) release() {
	p.soon(whileLoading)
	p.out.Status.Message = "is released"
	switch {
	case p.keepsDropped(), p.holdUnsent():
		p.evict()
	case len(p.Labelled) > 0:
		for _, node := range p.Labelled {
			p.do(Action{Verb: Unlabel, Node: node, Key: p.label()})
		}
	case !p.endUse():
		p.evict() // pods that keep the rest, or an upload that fails, may do so for ever
	default:
		p.releaseReplicas()
		if len(p.out.Status.Nodes) == 0 && p.UploadJob == nil {
			p.out.Gone, p.out.Status.Message, p.out.Again = true, "released"+p.notUploaded(), whileIdle
		}
	}
}

// endUse uploads what consumers leave, and takes back the claims by which they reach it. It reports
// whether both are done.
func (p *planner) endUse() bool {
	if p.Upload && !p.ensureUploaded() {
		return false
	}
	// What tells since when pods may have written more goes when none can any more.
	if _, from := p.uploadFrom(); !p.Upload || from == nil || !p.isWritable(from.Claim) {
		p.deleteUploadJob()
	}
	if !p.deleteReaders() {
		p.out.Status.Message = "is released as soon as no pod uses claim " + replica.ReadersClaim(p.Owner.Name, p.Config.ID) +
			"; pods that have ended count, too: delete them, or their Jobs"
		return false
	}
	if len(p.SharedBy) > 0 {
		p.out.Status.Message = "is released as soon as no pod of another namespace uses it any more, by claim " + strings.Join(p.sharedClaims(), ", ")
		return false
	}
	return true
}

// releaseReplicas lets all of them go.
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

// holdUnsent keeps what a mirror may not have uploaded, if nobody can say where to: the
// spec does not name its volume any more.
func (p *planner) holdUnsent() bool {
	r := p.unsent()
	switch {
	case r == nil || p.Upload && !going(r.Claim):
		return false
	case going(r.Claim) && p.wasUploaded() != "" && len(p.InUse) == 0:
		p.do(Action{Verb: RemoveFinalizer, Object: r.Claim})
		return true
	case going(r.Claim):
		status := flexlvmv1.ReplicaStatus{Claim: r.Claim.Name, Node: r.Node}
		p.out.Status.Message = ""
		p.giveUp(r, &status)
		p.out.Status.Nodes = append(p.out.Status.Nodes, status)
		return true
	}
	p.out.Failed, p.out.Again = true, whileIdle
	p.out.Status.Message = fmt.Sprintf("the spec does not say any more where to upload what is in claim %s, so it is kept: name the volume again as it was, or take the finalizer %s off the claim to give it up", r.Claim.Name, finalizerMirror)
	return true
}

const nothingUploaded = "nothing was uploaded"

// notUploaded is what is told of a volume whose upload was asked for, and that had
// nothing to upload: a replica that is not complete holds nothing that its source does
// not. One that was released for an earlier spec keeps what was told of it.
func (p *planner) notUploaded() string {
	old := p.before()
	if !p.Upload || p.out.Status.Uploaded != "" ||
		p.Owner.Status.State == flexlvmv1.StateCompleted && !strings.Contains(old.Message, nothingUploaded) {
		return ""
	}
	because := "no complete replica holds what the volume asks for: what is in the source is still there"
	if p.Source.Writable() {
		because = "there was no volume"
	}
	return fmt.Sprintf("; %s to %s, because %s", nothingUploaded, p.Source.Target(), because)
}

// ensureUploaded reports whether what is in the volume is at outputURL, and has it uploaded otherwise. As long as pods may
// write to it, the status is not believed without the Job that uploaded: what they wrote
// since is known by that alone.
func (p *planner) ensureUploaded() bool {
	index, from := p.uploadFrom()
	was := p.wasUploaded()
	if from == nil {
		p.out.Status.Uploaded = p.before().Uploaded // nothing was written since, for whatever spec
		return true
	}
	if was != "" && !p.isWritable(from.Claim) && (going(from.Claim) || len(p.InUse) == 0) {
		p.out.Status.Uploaded = was
		return true
	}
	return p.planUpload(index, from)
}

// wasUploaded is what the status says of the spec as it is now. What was uploaded for
// an earlier one says nothing: consumers may have written since.
func (p *planner) wasUploaded() string {
	if p.Owner.Status.ObservedGeneration != p.Owner.Generation {
		return ""
	}
	return p.before().Uploaded
}

// before is what the status says of the volume.
func (s *Observed) before() flexlvmv1.VolumeStatus {
	for _, v := range s.Owner.Status.Volumes {
		if v.ID == s.Config.ID {
			return v
		}
	}
	return flexlvmv1.VolumeStatus{}
}

// planUpload plans the Job that uploads what is in a replica, and reports whether that is at outputURL by now. Nothing goes
// before that, and nothing that failed is given up but by a person.
func (p *planner) planUpload(index int, from *Replica) bool {
	if going(from.Claim) || from.Claim.Status.Phase == corev1.ClaimLost {
		p.out.Failed = true
		p.out.Status.Message = fmt.Sprintf("cannot be uploaded to %s: claim %s is being deleted or has lost its PersistentVolume%s", p.Source.Target(), from.Claim.Name, wayOut(from))
		return false
	}
	if !p.isOfSpec(index, from) {
		return false
	}
	task := p.uploadTask(index, from.Claim)
	succeeded, failed, why := end(p.UploadJob)
	status := flexlvmv1.ReplicaStatus{State: flexlvmv1.ReplicaUploading, Claim: from.Claim.Name, Node: from.Node}
	switch {
	case len(p.InUse) > 0:
		// What they write may not be in an upload that has begun.
		p.out.Status.Message = "is uploaded as soon as no pod uses it; now there are " + strings.Join(p.InUse, ", ")
		p.deleteUploadJob()
		return false
	case p.UploadJob == nil && p.deleteLoader(from):
		p.out.Status.Message = "is uploaded as soon as its loader has ended"
	case p.UploadJob == nil:
		p.out.Status.Message = "is uploaded to " + p.Source.Target()
		p.do(Action{Verb: Create, Object: task.upload()})
	case going(p.UploadJob) || p.UploadJob.Annotations[annotationAttempt] != task.attempt:
		// Also where it has ended well: it was for something else.
		p.out.Status.Message = "is uploaded anew to " + p.Source.Target()
		p.deleteUploadJob()
	case succeeded && !p.wasWatched(from):
		p.out.Status.Message = "is uploaded anew to " + p.Source.Target() + ", as there was a time without a look for pods since: one may have written and be gone"
		p.deleteUploadJob()
	case succeeded:
		p.out.Status.Uploaded, p.out.Status.Message = p.Source.Target(), "was uploaded to "+p.Source.Target()
		p.soon(afterAction)
		return p.wasUploaded() != "" // nothing goes before that is written
	case failed:
		p.uploadFailed(from, &status, why)
	default:
		p.out.Status.Message = "is uploaded to " + p.Source.Target()
		if status.Message = refusedOr(p.UploadRefused, p.UploadPod); status.Message != "" {
			p.out.Status.Message += "; " + status.Message + wayOut(from)
		}
	}
	p.out.Status.Nodes = append(p.out.Status.Nodes, status)
	return false
}

// wasWatched reports whether this process has looked for pods, without a pause, since before the upload
// began. A pod that wrote, ended and was deleted while none looked has left nothing that tells of it. An
// upload that still runs is not broken off for that, as what it sends is not sent again, and a
// controller that is restarted again and again must not keep it from getting on.
func (p *planner) wasWatched(from *Replica) bool {
	return !p.isWritten(from.Claim) || p.UploadJob.Annotations[annotationWatch] == p.watch()
}

// deleteLoader deletes the Job of a loader that still works on a replica, and reports whether one does.
func (p *planner) deleteLoader(from *Replica) bool {
	if from.Job == nil || !ended(from.Job).IsZero() {
		return from.Busy
	}
	if !going(from.Job) {
		p.do(Action{Verb: Delete, Object: from.Job})
	}
	return true
}

// uploadFailed tells of a Job that has failed. One whose loader never ran is made anew.
func (p *planner) uploadFailed(from *Replica, status *flexlvmv1.ReplicaStatus, why string) {
	if !hasRun(p.UploadPod) {
		status.Message = couldNotRun(p.UploadPod) + "; it is tried again"
		p.out.Status.Message = "is uploaded to " + p.Source.Target() + "; " + status.Message + wayOut(from)
		p.again(p.UploadJob)
		return
	}
	p.out.Failed, status.State = true, flexlvmv1.ReplicaFailed
	status.Message = failure(p.UploadPod, why)
	p.out.Status.Message = "cannot be uploaded to " + p.Source.Target() + ", so it is kept: " + status.Message + wayOut(from)
}

// wayOut is how to give up what is in a claim that waits for its upload; empty where it
// does not.
func wayOut(r *Replica) string {
	if !isHeld(r.Claim) {
		return ""
	}
	return fmt.Sprintf("; to give up what is in it, delete claim %s and take the finalizer %s off it", r.Claim.Name, finalizerMirror)
}

// isOfSpec reports whether what a mirrored replica holds is what the spec names. If not,
// where it came from is not known any more.
func (p *planner) isOfSpec(index int, from *Replica) bool {
	if !p.Source.Mirror || p.isOfLoad(from, annotationLoad, index) {
		return true
	}
	p.out.Failed = true
	p.out.Status.Message = fmt.Sprintf("cannot be uploaded to %s, so it is kept: claim %s holds what the volume asked for earlier; undo that change%s", p.Source.Target(), from.Claim.Name, wayOut(from))
	return false
}

// deleteUploadJob removes the Job that uploads, where there is one.
func (p *planner) deleteUploadJob() {
	if p.UploadJob != nil && !going(p.UploadJob) {
		p.do(Action{Verb: Delete, Object: p.UploadJob})
	}
}

// uploadFrom is the first replica whose volume consumers could have written, or at
// least read; nil where there is none. Those they may write they could also mount
// before it was complete. What they only read and was made for another source is not
// what is to be uploaded.
func (p *planner) uploadFrom() (int, *Replica) {
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || r.Claim == nil {
			continue
		}
		written := p.isWritten(r.Claim) && r.Claim.Status.Phase != corev1.ClaimPending
		read := !going(r.Claim) && p.isOfLoad(r, replica.AnnotationComplete, index)
		if written || read {
			return index, r
		}
	}
	return 0, nil
}
