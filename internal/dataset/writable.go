package dataset

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// isWritable reports whether a claim that is not being deleted is one that consumers write to. There is no
// other copy of its content, so no edit, node or failed load deletes it or overwrites it. Only its user releases
// it: by Completed, by deleting the VolumeManager, or by deleting the claim. An annotation of the claim records
// that, too, as the spec may no longer name its volume, or name another one like it.
func (p *planner) isWritable(claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && !isDeleting(claim) && p.isWritten(claim)
}

// shown reports whether consumers see a kept claim, and so may write to it: both the claim and the spec are for
// writing. A claim that was created for another source is not shown: its data would pass for the dataset, or,
// as it is not marked as written, it could be deleted with what consumers write.
func (p *planner) shown(claim *corev1.PersistentVolumeClaim) bool {
	return p.Source.Writable() && claim.Annotations[replica.AnnotationWritable] != ""
}

// isWritten reports whether consumers write to a claim, or did while the spec still said so.
func (s *Observed) isWritten(claim *corev1.PersistentVolumeClaim) bool {
	return s.Source.Writable() || claim.Annotations[replica.AnnotationWritable] != ""
}

// planWritable plans a replica whose claim is kept. If the replica differs from the spec, it stays as it is and usable,
// and the status reports that. Only a claim that was created for another source is not shown to consumers.
func (p *planner) planWritable(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	loaded := r.Claim.Annotations[replica.AnnotationComplete] != ""
	if !loaded && p.loadFailed(index, r, status) {
		return
	}
	why := p.differs(index, r)
	switch {
	case loaded && p.shown(r.Claim):
		p.planUsable(r, status)
		switch {
		case why != "": // a mirror keeps uploading to its old target
		case p.Source.Mirror:
			p.planMirror(index, r, status)
		default:
			p.planVisits(index, r, status)
		}
	case why == "":
		p.planLoading(index, r, status)
	default:
		status.State = flexlvmv1.ReplicaFailed
	}
	if why != "" {
		p.out.Failed = true
		status.Message = fmt.Sprintf("%s; it is kept, as consumers may have written to it: %s, or make another volume, or delete claim %s to give up what is in it", why, p.undo(r.Claim), r.Claim.Name)
		p.out.Status.Message = status.Claim + ": " + status.Message
	}
}

// undo returns what brings a kept replica back into use. The sourceType of a volume cannot be changed.
func (p *planner) undo(claim *corev1.PersistentVolumeClaim) string {
	if p.shown(claim) {
		return "undo the change"
	}
	if p.Source.Mirror || claim.Annotations[annotationResync] == resyncUpload {
		return "restore the previous value of resync"
	}
	return "remove the volume from the spec and add it again with its old sourceType"
}

// differs returns how a kept replica differs from the spec; empty if it does not.
func (p *planner) differs(index int, r *Replica) string {
	switch {
	case !p.shown(r.Claim):
		if p.Source.Mirror || p.Source.Type == flexlvmv1.SourceS3 && r.Claim.Annotations[annotationResync] == resyncUpload {
			return "it was created with another value of resync, so no consumer sees it"
		}
		return "it was created for another sourceType, so no consumer sees it"
	case !p.isWanted(index):
		return "there are more replicas than the volume asks for"
	}
	return p.outdated(index, r)
}

// planDropped reports whether the spec no longer names the volume and it holds what consumers wrote. Then the volume is
// kept, and the status says so. Whether that was to be uploaded is no longer known.
func (p *planner) planDropped() bool {
	if !p.Dropped {
		return false
	}
	for _, index := range p.indexes() {
		if r := p.Replicas[index]; r != nil && p.isWritable(r.Claim) {
			p.out.Failed, p.out.RequeueAfter = true, whileIdle
			p.out.Status.Message = fmt.Sprintf("is no longer in the spec; claim %s is kept, as consumers may have written to it: name the volume again, or delete the claim to give up what is in it", r.Claim.Name)
			return true
		}
	}
	return false
}
