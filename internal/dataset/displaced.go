package dataset

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	// schedulerLags is how long the cache of a scheduler may still hold a label that was removed.
	schedulerLags = 10 * time.Second
	// betweenReads is the precision of the recorded time when a dataset was last read.
	betweenReads = 5 * time.Minute
)

// needsConsumers reports whether planning needs the pods that use the volume, because of displacing.
func (s *Observed) needsConsumers() bool {
	for _, r := range s.Replicas {
		if r.Claim == nil {
			continue
		}
		a := r.Claim.Annotations
		if a[annotationDisplacedBy] != "" || a[annotationWasDisplaced] != "" || s.Source.Displaceable && a[replica.AnnotationComplete] != "" {
			return true
		}
	}
	return slices.ContainsFunc(s.before().Nodes, isDisplaced)
}

// planComplete plans a complete replica: it is displaced if another dataset needs its room, and otherwise it is usable,
// copied from, and refreshed.
func (p *planner) planComplete(index int, r *Replica, status *flexlvmv1.ReplicaStatus) {
	if !p.planDisplacement(index, r, status) {
		p.planUsable(r, status)
		if !p.planPeerServer(index, r, status) {
			p.planVisits(index, r, status)
		}
	}
}

// planDisplacement plans a complete replica whose room another dataset asks for, and reports whether it did:
// first the node's label is removed, then, when no scheduler can still have the label and no pod reads or wants
// the dataset, the status records that, and then the claim is deleted. Until then any pod, any edit and any
// doubt keeps the replica.
func (p *planner) planDisplacement(index int, r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	by := r.Claim.Annotations[annotationDisplacedBy]
	if by == "" {
		return false
	}
	if !p.Source.Displaceable || p.ConsumersByNode == nil || len(p.Consumers) > 0 || r.Volume == nil || r.Node == "" || r.Volume.Annotations[replica.AnnotationEvict] != "" || p.cannotRemember(index, status.Claim) {
		p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationDisplacedBy: "", annotationDisplacing: ""}})
		return false
	}
	why := fmt.Sprintf("dataset %s needs its room on node %s, and no pod reads it", by, r.Node)
	status.State, status.Message = flexlvmv1.ReplicaLeaving, why
	p.requeueAfter(whileLoading)
	since := timeOf(r.Claim, annotationDisplacing)
	switch {
	case slices.Contains(p.Labelled, r.Node): // the label is removed in this plan
		if !since.IsZero() {
			p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationDisplacing: ""}})
		}
	case since.IsZero():
		p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: map[string]string{annotationDisplacing: p.Now.UTC().Format(time.RFC3339)}})
	case p.Now.Sub(since) < schedulerLags:
	case p.remembered(index, status.Claim).State != flexlvmv1.ReplicaDisplaced:
		p.displaced++
		status.State, status.Message = flexlvmv1.ReplicaDisplaced, p.displacedBy(by, r.Node)
		p.requeueAfter(afterAction)
	default:
		status.State, status.Message = flexlvmv1.ReplicaDisplaced, p.displacedBy(by, r.Node)
		p.delete(r, "ReplicaDisplaced", why)
	}
	return true
}

// cannotRemember reports whether the status has no room to record one more displaced replica. A replica that is
// not recorded would be loaded again unwanted, and might displace the other dataset in turn.
func (p *planner) cannotRemember(index int, claim string) bool {
	displaced := p.displaced
	for _, r := range p.before().Nodes {
		if isDisplaced(r) {
			displaced++
		}
	}
	return displaced >= maxReplicas && !isDisplaced(p.remembered(index, claim))
}

func (p *planner) displacedBy(by, node string) string {
	return fmt.Sprintf("dataset %s has used its room on node %s since %s; it is loaded again as soon as a pod needs it", by, node, p.Now.UTC().Format(time.RFC3339))
}

// staysAway keeps a displaced replica from being loaded again before a pod wants it.
func (p *planner) staysAway(index int, r *Replica, status *flexlvmv1.ReplicaStatus) bool {
	old := p.remembered(index, status.Claim)
	if old.State != flexlvmv1.ReplicaDisplaced || !p.Source.Displaceable || len(p.Consumers) > 0 || r.Claim != nil && !isDeleting(r.Claim) {
		return false
	}
	status.State, status.Message, status.Node = flexlvmv1.ReplicaDisplaced, old.Message, old.Node
	if r.Job != nil && !isDeleting(r.Job) {
		p.do(Action{Verb: Delete, Object: r.Job})
	}
	p.requeueAfter(whileMirroring)
	return true
}

// recordUse records on the claim of a complete replica whether it may be displaced, and about when its dataset
// was last read.
func (p *planner) recordUse(r *Replica) {
	annotations, is := map[string]string{}, ""
	if p.Source.Displaceable {
		is = strconv.FormatBool(true)
	}
	if r.Claim.Annotations[annotationDisplaceable] != is {
		annotations[annotationDisplaceable] = is
	}
	if p.Source.Displaceable && len(p.Consumers) > 0 && p.Now.Sub(timeOf(r.Claim, annotationLastRead)) >= betweenReads {
		annotations[annotationLastRead] = p.Now.UTC().Format(time.RFC3339)
	}
	if len(annotations) > 0 {
		p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: annotations})
	}
}
