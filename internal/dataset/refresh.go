package dataset

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// grow asks for more room, where more is wanted than the claim has asked for.
func (p *planner) grow(r *Replica) {
	asked := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if r.Claim.Status.Phase == corev1.ClaimBound && asked.Cmp(p.Source.Capacity) < 0 { // others cannot
		p.do(Action{Verb: Grow, Object: r.Claim, Size: p.Source.Capacity})
	}
}

// refresh has a loader mount the replica, which consumers never do by its own claim:
// kubelet grows only what a pod has mounted, and refresh looks for news.
func (p *planner) refresh(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if status.State != flexlvmv1.ReplicaComplete {
		return // it is to be evicted, or not seen
	}
	asked, has := r.Claim.Spec.Resources.Requests[corev1.ResourceStorage], r.Claim.Status.Capacity[corev1.ResourceStorage]
	every := p.Source.Refresh
	if has.Cmp(asked) < 0 {
		status.Message = fmt.Sprintf("grows from %s to %s", has.String(), asked.String())
		every = betweenVisits
	}
	if every == 0 {
		return
	}
	if r.Job == nil && r.Busy {
		return
	}
	if r.Job == nil {
		p.do(Action{Verb: Create, Object: p.task(index, r.Claim).visit()})
		p.soon(whileLoading)
		return
	}
	at := ended(r.Job)
	if at.IsZero() || going(r.Job) {
		p.soon(whileLoading)
		return
	}
	if _, failed, why := end(r.Job); failed {
		status.Message = "its last visit failed: " + failure(r.Pod, why)
	}
	// The first visit does not wait: the Job before it was the load.
	due := at.Add(every)
	if r.Job.Labels[labelRole] == roleLoad && p.Source.Refresh == 0 {
		due = at
	}
	if p.Now.Before(due) {
		p.soon(due.Sub(p.Now))
		return
	}
	p.do(Action{Verb: Delete, Object: r.Job})
	p.soon(whileLoading)
}
