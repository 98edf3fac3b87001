package dataset

import (
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// Evict returns what to do next for evictions that have begun, and nothing else. It is for a volume whose spec
// cannot be parsed.
func Evict(observed *Observed) []Action {
	p := &planner{Observed: observed}
	p.evict()
	return p.out.Actions
}

// evict plans the next step of evictions that have begun, whatever else happens to the volume: the node has
// already promised their room to other volumes.
func (p *planner) evict() {
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || r.Volume == nil || r.Node == "" || r.Volume.Annotations[replica.AnnotationEvict] == "" ||
			r.Claim == nil || r.Claim.Annotations[replica.AnnotationWritable] != "" {
			continue
		}
		if isPeerServer(r) { // the node daemon waits for pods that mount the replica, such as its server
			p.do(Action{Verb: Delete, Object: r.Job})
		}
		switch {
		case slices.Contains(p.Labelled, r.Node):
			p.do(Action{Verb: Unlabel, Node: r.Node, Key: p.label()})
		case r.Volume.Annotations[replica.AnnotationEvictable] != "":
			p.delete(r, "ReplicaReleased", evicted)
		default:
			p.unlabelled(r)
		}
	}
}

const evicted = "it was evicted because its node needs the room"

// unlabelled records for the node daemon that no pod is sent to the node of a replica any more.
func (p *planner) unlabelled(r *Replica) {
	if r.Volume.Annotations[replica.AnnotationUnlabelled] == "" && !slices.Contains(p.Labelled, r.Node) {
		p.do(Action{Verb: Annotate, Object: r.Volume, Annotations: map[string]string{replica.AnnotationUnlabelled: p.Now.UTC().Format(time.RFC3339)}})
	}
}
