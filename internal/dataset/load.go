package dataset

import (
	"github.com/flexlvm/flexlvm/internal/replica"
)

// isOfLoad reports whether an annotation of a claim names the wanted load. Older releases did not include the
// server in the digest: the data of their claims, which have no annotationEndpoint, is assumed to be from the
// server that the spec names now.
func (p *planner) isOfLoad(r *Replica, key string, index int) bool {
	value := r.Claim.Annotations[key]
	return value == p.Source.Load(index) || r.Claim.Annotations[annotationEndpoint] == "" && value == p.Source.loadBefore(index)
}

// adopt records, on a claim of an older release, which server its data is from.
func (p *planner) adopt(index int, r *Replica) {
	if r.Claim == nil || isDeleting(r.Claim) || r.Claim.Annotations[annotationEndpoint] != "" || !p.isOfLoad(r, annotationLoad, index) {
		return
	}
	annotations := map[string]string{annotationEndpoint: p.Source.server(), annotationLoad: p.Source.Load(index)}
	if p.isComplete(index, r) {
		annotations[replica.AnnotationComplete] = p.Source.Load(index)
	}
	p.do(Action{Verb: Annotate, Object: r.Claim, Annotations: annotations})
}
