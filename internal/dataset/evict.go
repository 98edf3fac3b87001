package dataset

import (
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// Evict returns what to do next for evictions that have begun, and nothing else. It is
// for a volume whose spec cannot be parsed.
func Evict(observed *Observed) []Action {
	p := &planner{Observed: observed}
	p.evict()
	return p.out.Actions
}

// evict does what is next for evictions that have begun, whatever else becomes of the volume: room
// was promised in reliance on them.
func (p *planner) evict() {
	for _, index := range p.indexes() {
		r := p.Replicas[index]
		if r == nil || r.Volume == nil || r.Node == "" || r.Volume.Annotations[replica.AnnotationEvict] == "" ||
			r.Claim == nil || r.Claim.Annotations[replica.AnnotationWritable] != "" {
			continue
		}
		if isServing(r) { // its daemon waits for those that mount it
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

const evicted = "it was evicted, as its node needs the room"

// unlabelled tells the daemon that no pod is sent to the node of a replica any more.
func (p *planner) unlabelled(r *Replica) {
	if r.Volume.Annotations[replica.AnnotationUnlabelled] == "" && !slices.Contains(p.Labelled, r.Node) {
		p.do(Action{Verb: Annotate, Object: r.Volume, Annotations: map[string]string{replica.AnnotationUnlabelled: p.Now.UTC().Format(time.RFC3339)}})
	}
}
