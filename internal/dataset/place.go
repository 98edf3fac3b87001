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

// A place is a replica that replicas: All wants.
type place struct {
	node string // whose replica it is; empty if that node is not known to the API any more
	// seen: the API has the node, so the replica counts among those that are wanted.
	seen bool
}

// placesOf are the replicas that replicas: All wants, by their numbers: those that lie on a
// node, which leave it by the rules of any other replica, and one more for each node that
// may have a replica and has none. A replica keeps its number for as long as there is
// anything of it, and that of a load that failed, or was displaced, stays with its node, so
// that this is not forgotten.
func placesOf(s *Observed) map[int]place {
	out, covered := map[int]place{}, map[string]bool{}
	unknown := s.lying(out, covered)
	// What has no volume yet holds nothing: it goes where its node is not to have one any more.
	for _, index := range slices.Sorted(maps.Keys(s.Replicas)) {
		if r := s.Replicas[index]; r.Claim != nil && isPending(r.Claim) && !going(r.Claim) {
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

// lying adds the replicas that lie on a node already, and the nodes that they cover; and
// reports whether there is one of which it is not known where.
func (s *Observed) lying(out map[int]place, covered map[string]bool) (unknown bool) {
	for index, r := range s.Replicas {
		if r.Claim == nil || isPending(r.Claim) {
			continue
		}
		node := cmp.Or(r.Node, r.Claim.Annotations[annotationNode])
		out[index] = place{node: node, seen: r.Node != "" || s.Fitting[node]}
		covered[node] = true
		unknown = unknown || node == "" && r.Volume == nil && !going(r.Claim)
	}
	return unknown
}

// reserve gives a number to a node that may have a replica and has none.
func (s *Observed) reserve(out map[int]place, covered map[string]bool, index int, node string) {
	if _, taken := out[index]; taken || index < 0 || !s.Fitting[node] || covered[node] {
		return
	}
	out[index] = place{node: node, seen: true}
	covered[node] = true
}

// isFree reports whether there is nothing of a number.
func (s *Observed) isFree(out map[int]place, index int) bool {
	_, taken := out[index]
	return !taken && s.Replicas[index] == nil
}

// indexOf is the number of the replica with this claim; negative if there is none.
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

// place decides which replicas are wanted.
func (p *planner) place() {
	if p.Config.Replicas != flexlvmv1.AllNodes {
		p.count = int32(p.Config.Replicas)
		return
	}
	p.places = placesOf(p.Observed)
	for index, at := range p.places {
		if at.seen && p.astray(p.Replicas[index]) == "" {
			p.count++
		}
	}
}

// isWanted reports whether a replica of this number is.
func (p *planner) isWanted(index int) bool {
	if p.places == nil {
		return index < int(p.count)
	}
	_, is := p.places[index]
	return is
}

// indexes are those that are wanted, and those that there are.
func (p *planner) indexes() []int {
	var out []int
	if p.places == nil {
		for i := range int(p.count) {
			out = append(out, i)
		}
	}
	out = slices.AppendSeq(out, maps.Keys(p.places))
	for i := range p.Replicas {
		if !p.isWanted(i) {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return out
}

// surplus says why a replica is one that nobody asks for.
func (p *planner) surplus(r *Replica) string {
	if p.places == nil || r.Claim == nil {
		return "it is one more than wanted"
	}
	if node := r.Claim.Annotations[annotationNode]; node != "" {
		return fmt.Sprintf("node %s is not among those that are to have one any more", node)
	}
	return "it was for no node in particular, and each that matches has its own now"
}

// misplaced says why a claim that has no volume yet is made anew: it waits for the one
// node, and any would do by now.
func (p *planner) misplaced(r *Replica) string {
	if node := r.Claim.Annotations[annotationNode]; p.places == nil && node != "" && isPending(r.Claim) {
		return fmt.Sprintf("it was for node %s alone", node)
	}
	return ""
}

// onlyOn is an affinity that takes one node alone, if that matches. Terms are alternatives,
// so each needs the condition.
func onlyOn(node string, affinity *corev1.NodeAffinity) {
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchFields = append(slices.Clone(terms[i].MatchFields),
			corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}})
	}
}
