package dataset

import (
	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// loadFailed handles a load that failed permanently. The claim is deleted, because its content is not the
// dataset, unless consumers may have written to it, and so is the Job: Kubernetes keeps a claim while a pod
// names it. The failure is first written to the status, which outlives both.
func (p *planner) loadFailed(index int, r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	if p.isComplete(index, r) && !isDeleting(r.Claim) {
		return false
	}
	attempt := p.task(index, nil).attempt
	old := p.remembered(index, status.Claim)
	known := old.State == flexlvmv1.ReplicaFailed && old.Attempt == attempt
	failed, why := r.loadFailedFor(attempt)
	overdue := p.overdue(r)
	if !known && !failed && overdue == "" {
		return false
	}
	p.out.Failed = true
	status.State, status.Attempt, status.Message = flexlvmv1.ReplicaFailed, attempt, old.Message
	if !known {
		status.Message = overdue
		if failed {
			status.Message = failure(r.Pod, why)
		}
		if p.isWritable(r.Claim) {
			status.Message += "; claim " + status.Claim + " is kept, as consumers may have written to it"
		}
		p.requeueAfter(afterAction)
		return true
	}
	if p.isWritable(r.Claim) {
		return true
	}
	p.delete(r, "LoadFailed", status.Message)
	return true
}

// remembered returns what the status records of a replica, without what recordMatch appended to its message.
func (p *planner) remembered(index int, claim string) flexlvmv1.ReplicaStatus {
	was := p.before()
	for _, r := range was.Nodes {
		if r.Claim == claim {
			r.Message = withoutUnmatched(r)
			return r
		}
	}
	for _, f := range was.Failures {
		if inRanges(f.Replicas, index) {
			return flexlvmv1.ReplicaStatus{Claim: claim, State: flexlvmv1.ReplicaFailed, Attempt: f.Attempt, Message: f.Message}
		}
	}
	return flexlvmv1.ReplicaStatus{}
}
