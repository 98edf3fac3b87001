package dataset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// defaultGrace is how long a replica stays on a node that does not match nodeAffinity any
// more. Programs that label nodes take their labels away for a minute when they restart,
// and for hours when somebody broke them.
const defaultGrace = 24 * time.Hour

// sightings is how long a controller has to have been running before it trusts how long, by its
// predecessor's record, a node has not matched: the node may have matched while no controller was
// running.
const sightings = 10 * time.Minute

func (s *Source) readGrace(text string) error {
	s.Grace = defaultGrace
	if text == "" {
		return nil
	}
	grace, err := time.ParseDuration(text)
	if err != nil || grace < time.Second {
		return fmt.Errorf("nodeAffinityGrace %q has to be how long a replica stays on a node that does not match, such as 24h, and not less than 1s", text)
	}
	s.Grace = grace
	return nil
}

// affinityDigest names what a volume requires of its nodes.
func affinityDigest(affinity *corev1.NodeAffinity) string {
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "any"
	}
	return digest(affinity.RequiredDuringSchedulingIgnoredDuringExecution)
}

// astray says why a replica has to leave its node: its user has asked for other nodes
// since, or the node has not matched for the grace period. A label that is missing for a
// while is no reason.
func (s *Observed) astray(r *Replica) string {
	if r == nil || r.Claim == nil || going(r.Claim) || !s.Barred[r.Node] {
		return ""
	}
	if was := r.Claim.Annotations[annotationAffinity]; was != "" && was != affinityDigest(s.Config.NodeAffinity) {
		return "its node is not among those that the volume asks for any more"
	}
	if s.Now.Sub(s.Began) < sightings {
		return ""
	}
	if since := s.unmatched(r); !since.IsZero() && s.Now.Sub(since) >= s.Source.Grace {
		return fmt.Sprintf("its node %s has not matched nodeAffinity for %s", r.Node, s.Source.Grace)
	}
	return ""
}

// unmatched is since when the node of a replica does not match; the zero time if that is
// not known, or lies in the future because another clock was ahead.
func (s *Observed) unmatched(r *Replica) time.Time {
	since, err := time.Parse(time.RFC3339, r.Claim.Annotations[annotationUnmatched])
	if err != nil || since.After(s.Now) {
		return time.Time{}
	}
	return since
}

// stays reports whether nothing is planned that takes a replica away.
func stays(state flexlvmv1.ReplicaState) bool {
	switch state {
	case flexlvmv1.ReplicaWaiting, flexlvmv1.ReplicaLoading, flexlvmv1.ReplicaStreaming, flexlvmv1.ReplicaComplete:
		return true
	}
	return false
}

// match keeps the record of whether a replica's node matches nodeAffinity, and says it in
// the status where it does not.
func (p *planner) match(r *Replica, status *flexlvmv1.ReplicaStatus) {
	if r.Claim == nil || going(r.Claim) || r.Node == "" || p.astray(r) != "" {
		return
	}
	asked, told := affinityDigest(p.Config.NodeAffinity), map[string]string{}
	switch {
	case p.Matching[r.Node]:
		if r.Claim.Annotations[annotationUnmatched] != "" {
			told[annotationUnmatched] = ""
		}
	case p.Barred[r.Node]:
		since := p.unmatched(r)
		if since.IsZero() {
			since = p.Now
			told[annotationUnmatched] = since.UTC().Format(time.RFC3339)
		}
		note := fmt.Sprintf("its node %s does not match nodeAffinity since %s; it is kept until %s, and as long as pods read it",
			r.Node, since.UTC().Format(time.RFC3339), since.Add(p.Source.Grace).UTC().Format(time.RFC3339))
		status.Message = strings.TrimPrefix(status.Message+"; "+note, "; ")
	default:
		return
	}
	if r.Claim.Annotations[annotationAffinity] != asked {
		told[annotationAffinity] = asked
	}
	if len(told) > 0 {
		p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: told})
	}
}

// readOn lets a replica that is astray wait for the pods that read it: no more come, and
// it goes when the last of them has ended.
func (p *planner) readOn(r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	why := p.astray(r)
	if why == "" || len(p.ReadOn[r.Node]) == 0 {
		return false
	}
	status.State = flexlvmv1.ReplicaLeaving
	status.Message = why + "; it goes as soon as no pod reads it; now there are " + strings.Join(p.ReadOn[r.Node], ", ")
	return true
}
