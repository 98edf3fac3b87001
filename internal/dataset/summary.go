package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// summarizeReplicas sums up the replicas of a volume.
func (p *planner) summarizeReplicas() {
	var total flexlvmv1.Progress
	known := false
	for _, r := range p.out.Status.Nodes {
		if r.Progress == nil {
			continue
		}
		known = true
		total.Files, total.FilesTotal = total.Files+r.Progress.Files, total.FilesTotal+r.Progress.FilesTotal
		total.Bytes, total.BytesTotal = total.Bytes+r.Progress.Bytes, total.BytesTotal+r.Progress.BytesTotal
		total.Percent += r.Progress.Percent
		total.BytesPerSecond += r.Progress.BytesPerSecond
		total.SecondsLeft = max(total.SecondsLeft, r.Progress.SecondsLeft)
	}
	if known {
		total.Percent /= max(1, p.count) // replicas that have not begun count
		total.Percent = min(total.Percent, 100)
		p.out.Status.Progress = &total
	}
	if p.out.Status.Message == "" {
		p.out.Status.Message = p.message()
	}
}

// maxAhead is how many more replicas than nodes may have loaders that wait for nodes: a cluster autoscaler
// adds nodes only for waiting pods.
const maxAhead = 10

// countNodes returns the number of nodes for replicas: those that fit, and those that do not match for a while
// and keep their replicas.
func (p *planner) countNodes() int {
	out := len(p.Fitting)
	for _, r := range p.Replicas {
		if r.Claim != nil && !isDeleting(r.Claim) && p.NotMatching[r.Node] && p.mustLeaveNode(r) == "" {
			out++
		}
	}
	return out
}

// message returns VCK's message where VCK had one, and otherwise what keeps the volume from being ready.
func (p *planner) message() string {
	if p.assignments != nil && p.count == 0 {
		return "no node matches nodeAffinity and tolerations; the first that does gets a replica"
	}
	if p.out.Loaded == p.count || p.out.Status.ReadyReplicas == p.count {
		return flexlvmv1.MessageSuccess
	}
	if p.assignments == nil && p.nodes < int(p.count) {
		p.out.Failed = true
		return fmt.Sprintf("replicas [%d] greater than number of nodes [%d]", p.count, p.nodes)
	}
	for _, state := range []flexlvmv1.ReplicaState{flexlvmv1.ReplicaFailed, flexlvmv1.ReplicaWaiting, flexlvmv1.ReplicaLeaving, flexlvmv1.ReplicaDisplaced, flexlvmv1.ReplicaLoading} {
		for _, r := range p.out.Status.Nodes {
			if r.State == state && r.Message != "" {
				return p.named(r) + ": " + r.Message
			}
		}
	}
	return fmt.Sprintf("%d of %d replicas are ready", p.out.Status.ReadyReplicas, p.count)
}

// named returns a replica and its state; with replicas: All also the number of replicas in that state.
func (p *planner) named(r flexlvmv1.ReplicaStatus) string {
	if p.assignments == nil {
		return fmt.Sprintf("%s %s", r.Claim, r.State)
	}
	alike := 0
	for _, other := range p.out.Status.Nodes {
		if other.State == r.State {
			alike++
		}
	}
	return fmt.Sprintf("%d of %d nodes %s; %s on node %s", alike, p.count, r.State, r.Claim, cmp.Or(r.Node, "(gone)"))
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
