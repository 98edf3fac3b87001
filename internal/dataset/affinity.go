package dataset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// defaultGrace is how long a replica stays on a node that no longer matches nodeAffinity. Programs that label
// nodes remove their labels for a minute when they restart, and for hours when somebody broke them.
const defaultGrace = 24 * time.Hour

// minObservation is how long a controller must have been running before it trusts a recorded time since which a node
// has not matched: the node may have matched while no controller was running.
const minObservation = 10 * time.Minute

func (s *Source) readGrace(text string) error {
	s.Grace = defaultGrace
	if text == "" {
		return nil
	}
	grace, err := time.ParseDuration(text)
	if err != nil || grace < time.Second {
		return fmt.Errorf("nodeAffinityGrace %q is not a valid time; write how long a replica stays on a node that does not match, such as 24h, at least 1s", text)
	}
	s.Grace = grace
	return nil
}

// affinityDigest identifies the node affinity that a volume requires.
func affinityDigest(affinity *corev1.NodeAffinity) string {
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "any"
	}
	return digest(affinity.RequiredDuringSchedulingIgnoredDuringExecution)
}

// mustLeaveNode returns why a replica has to leave its node, or "": its user has requested other nodes since, or the
// node has not matched for the grace period. A label that is missing for less time is no reason.
func (s *Observed) mustLeaveNode(r *Replica) string {
	if r == nil || r.Claim == nil || isDeleting(r.Claim) || !s.NotMatching[r.Node] {
		return ""
	}
	if was := r.Claim.Annotations[annotationAffinity]; was != "" && was != affinityDigest(s.Config.NodeAffinity) {
		return "its node is no longer among those that the volume asks for"
	}
	if s.Now.Sub(s.StartedAt) < minObservation {
		return ""
	}
	if since := s.unmatched(r); !since.IsZero() && s.Now.Sub(since) >= s.Source.Grace {
		return fmt.Sprintf("its node %s has not matched nodeAffinity for %s", r.Node, s.Source.Grace)
	}
	return ""
}

// unmatched returns since when the node of a replica has not matched; the zero time if that is not known, or
// lies in the future because another clock was ahead.
func (s *Observed) unmatched(r *Replica) time.Time {
	since, err := time.Parse(time.RFC3339, r.Claim.Annotations[annotationUnmatched])
	if err != nil || since.After(s.Now) {
		return time.Time{}
	}
	return since
}

// stays reports whether a replica in this state is neither leaving, failed nor displaced.
func stays(state flexlvmv1.ReplicaState) bool {
	switch state {
	case flexlvmv1.ReplicaWaiting, flexlvmv1.ReplicaLoading, flexlvmv1.ReplicaStreaming, flexlvmv1.ReplicaComplete:
		return true
	}
	return false
}

// recordMatch records on a replica's claim whether its node matches nodeAffinity, and notes in the status that it
// does not.
func (p *planner) recordMatch(r *Replica, status *flexlvmv1.ReplicaStatus) {
	if r.Claim == nil || isDeleting(r.Claim) || r.Node == "" || p.mustLeaveNode(r) != "" {
		return
	}
	asked, annotations := affinityDigest(p.Config.NodeAffinity), map[string]string{}
	switch {
	case p.Matching[r.Node]:
		if r.Claim.Annotations[annotationUnmatched] != "" {
			annotations[annotationUnmatched] = ""
		}
	case p.NotMatching[r.Node]:
		since := p.unmatched(r)
		if since.IsZero() {
			since = p.Now
			annotations[annotationUnmatched] = since.UTC().Format(time.RFC3339)
		}
		note := unmatchedNote(r.Node) + fmt.Sprintf("%s; it is kept until %s, and after that while pods read it",
			since.UTC().Format(time.RFC3339), since.Add(p.Source.Grace).UTC().Format(time.RFC3339))
		status.Message = strings.TrimPrefix(status.Message+"; "+note, "; ")
	default:
		return
	}
	if r.Claim.Annotations[annotationAffinity] != asked {
		annotations[annotationAffinity] = asked
	}
	if len(annotations) > 0 {
		p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: annotations})
	}
}

// unmatchedNote begins the note that recordMatch appends to the message of a replica on a node.
func unmatchedNote(node string) string {
	return fmt.Sprintf("its node %s has not matched nodeAffinity since ", node)
}

// withoutUnmatched returns a replica's message without the note of recordMatch, which each plan appends again.
func withoutUnmatched(r flexlvmv1.ReplicaStatus) string {
	message, _, _ := strings.Cut(r.Message, unmatchedNote(r.Node))
	return strings.TrimSuffix(message, "; ")
}

// staysForReaders reports whether a replica that has to leave its node stays because pods there still read it. The node
// loses the dataset's label, so no new pods come.
func (p *planner) staysForReaders(r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	why := p.mustLeaveNode(r)
	if why == "" || len(p.ConsumersByNode[r.Node]) == 0 {
		return false
	}
	status.State = flexlvmv1.ReplicaLeaving
	status.Message = why + "; it is removed as soon as no pod reads it; pods that read it: " + firstOf(p.ConsumersByNode[r.Node])
	return true
}
