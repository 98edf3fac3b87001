package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// An assignment is a replica that replicas: All asks for.
type assignment struct {
	node string // that the replica is for; empty if the API no longer has the node
	// nodeKnown: the API has the node, so the replica counts as wanted.
	nodeKnown bool
}

// assignmentsOf returns the replicas that replicas: All asks for, by number: those that are on a node, which leave
// it by the same rules as any replica, and one more for each node that may have a replica and has none. A
// replica keeps its number while any object of it exists. A failed load or a displaced replica keeps its number
// and node, so that its record is not lost.
func assignmentsOf(s *Observed) map[int]assignment {
	out, covered := map[int]assignment{}, map[string]bool{}
	unknown := s.addPlaced(out, covered)
	// A claim without a volume holds no data: it is dropped if its node is not to have a replica any more.
	for _, index := range slices.Sorted(maps.Keys(s.Replicas)) {
		if r := s.Replicas[index]; r.Claim != nil && isPending(r.Claim) && !isDeleting(r.Claim) {
			s.reserve(out, covered, index, r.Claim.Annotations[annotationNode])
		}
	}
	for _, r := range s.before().Nodes {
		if r.State == flexlvmv1.ReplicaFailed || r.State == flexlvmv1.ReplicaDisplaced {
			s.reserve(out, covered, s.indexOf(r.Claim), r.Node)
		}
	}
	if unknown {
		return out // it may be on any of the nodes that seem to have none
	}
	next := 0
	for _, node := range sorted(s.Fitting) {
		if covered[node] {
			continue
		}
		for !s.isFree(out, next) {
			next++
		}
		s.reserve(out, covered, next, node)
	}
	return out
}

// addPlaced adds the replicas that are already on a node, and the nodes that they cover. It reports whether the
// node of any replica is unknown.
func (s *Observed) addPlaced(out map[int]assignment, covered map[string]bool) (unknown bool) {
	for index, r := range s.Replicas {
		if r.Claim == nil || isPending(r.Claim) {
			continue
		}
		node := cmp.Or(r.Node, r.Claim.Annotations[annotationNode])
		out[index] = assignment{node: node, nodeKnown: r.Node != "" || s.Fitting[node]}
		covered[node] = true
		unknown = unknown || node == "" && r.Volume == nil && !isDeleting(r.Claim)
	}
	return unknown
}

// reserve assigns a number to a node that may have a replica and has none.
func (s *Observed) reserve(out map[int]assignment, covered map[string]bool, index int, node string) {
	if _, taken := out[index]; taken || index < 0 || !s.Fitting[node] || covered[node] {
		return
	}
	out[index] = assignment{node: node, nodeKnown: true}
	covered[node] = true
}

// isFree reports whether no object uses a number.
func (s *Observed) isFree(out map[int]assignment, index int) bool {
	_, taken := out[index]
	return !taken && s.Replicas[index] == nil
}

// indexOf returns the number of the replica with this claim; negative if there is none.
func (s *Observed) indexOf(claim string) int {
	number, is := strings.CutPrefix(claim, base(s.Owner.Name, s.Config.ID)+"-")
	if index, err := strconv.Atoi(number); is && err == nil {
		return index
	}
	return -1
}

// isPending reports whether a claim has no volume yet.
func isPending(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimPending || claim.Status.Phase == ""
}

// assignReplicas determines which replicas are wanted.
func (p *planner) assignReplicas() {
	if p.Config.Replicas != flexlvmv1.AllNodes {
		p.count = int32(p.Config.Replicas)
		return
	}
	p.assignments = assignmentsOf(p.Observed)
	for index, at := range p.assignments {
		if at.nodeKnown && p.mustLeaveNode(p.Replicas[index]) == "" {
			p.count++
		}
	}
}

// isWanted reports whether the replica with this number is wanted.
func (p *planner) isWanted(index int) bool {
	if p.assignments == nil {
		return index < int(p.count)
	}
	_, is := p.assignments[index]
	return is
}

// indexes returns the numbers of the replicas that are wanted or exist.
func (p *planner) indexes() []int {
	var out []int
	if p.assignments == nil {
		for i := range int(p.count) {
			out = append(out, i)
		}
	}
	out = slices.AppendSeq(out, maps.Keys(p.assignments))
	for i := range p.Replicas {
		if !p.isWanted(i) {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return out
}

// surplus returns why a replica is not wanted.
func (p *planner) surplus(r *Replica) string {
	if p.assignments == nil || r.Claim == nil {
		return "there are more replicas than the volume asks for"
	}
	if node := r.Claim.Annotations[annotationNode]; node != "" {
		return fmt.Sprintf("node %s is no longer among the nodes that need a replica", node)
	}
	return "it was not assigned to a node, and each matching node has its own replica now"
}

// misplaced returns why a claim without a volume has to be created again: it waits for one particular node, and
// the spec now allows any.
func (p *planner) misplaced(r *Replica) string {
	if node := r.Claim.Annotations[annotationNode]; p.assignments == nil && node != "" && isPending(r.Claim) {
		return fmt.Sprintf("it was for node %s alone", node)
	}
	return ""
}

// onlyOn restricts an affinity to one node. Terms are alternatives, so each needs the condition.
func onlyOn(node string, affinity *corev1.NodeAffinity) {
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchFields = append(slices.Clone(terms[i].MatchFields),
			corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}})
	}
}
