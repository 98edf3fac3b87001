package ledger

import (
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxClasses limits how many classes are cached; beyond that, all are dropped. The ledger does not
// learn when a class is deleted.
const maxClasses = 200

// A Largest is the largest offer of a set of nodes to volumes of a class.
type Largest struct {
	Node          string       // with the largest offer; empty if none of the nodes has the pool
	MaxVolumeSize volume.Bytes // the largest usable size that a volume may have
	Nodes         int          // with the pool
	// Closed is why Node takes no new volumes, phrased to follow its name. It is set only if no node
	// can offer any room and one is closed; Node then is the first closed one by label.
	Closed string
	// Reported is the number of nodes that have reported, allowed or not; counted only if Nodes is 0.
	Reported int
}

// classOffers are all nodes' offers to one class. An offer is recomputed when its node has changed,
// not for each request.
type classOffers struct {
	offers map[string]largestOffer // by label, of the nodes with the pool
	stale  map[string]bool         // labels whose offers have to be recomputed
	first  string                  // label of the node with the largest offer; empty: unknown
}

// A largestOffer is the part of an Offer that classOffers keep.
type largestOffer struct {
	maxVolumeSize volume.Bytes
	closed        string
}

// Largest returns the largest offer to volumes of a class among the nodes for which allows returns
// true, or among all if allows is nil. It is cheap while few nodes have changed since the last call for
// that class. allows must not call the ledger.
func (l *Ledger) Largest(class volume.Spec, allows func(node string) bool) Largest {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.offersTo(class)
	if allows != nil {
		return l.among(s, allows)
	}
	if s.first == "" {
		s.find()
	}
	return l.largest(s, s.first, len(s.offers))
}

// largest returns the offer of the node with the label first, which has the largest of this many
// offers; first may be empty.
func (l *Ledger) largest(s *classOffers, first string, nodes int) Largest {
	if first == "" {
		return Largest{Reported: l.reported()}
	}
	return Largest{Node: l.accounts[first].node, MaxVolumeSize: s.offers[first].maxVolumeSize, Closed: s.offers[first].closed, Nodes: nodes}
}

// reported counts the nodes that have reported.
func (l *Ledger) reported() (n int) {
	for _, a := range l.accounts {
		if a.node != "" {
			n++
		}
	}
	return n
}

// among returns the largest offer of the allowed nodes.
func (l *Ledger) among(s *classOffers, allows func(node string) bool) Largest {
	first, nodes := "", 0
	for label := range s.offers {
		if !allows(l.accounts[label].node) {
			continue
		}
		if nodes++; first == "" || s.before(label, first) {
			first = label
		}
	}
	return l.largest(s, first, nodes)
}

// offersTo returns the current offers of all nodes to a class.
func (l *Ledger) offersTo(class volume.Spec) *classOffers {
	s, known := l.byClass[class]
	if !known {
		if len(l.byClass) >= maxClasses {
			clear(l.byClass)
		}
		s = &classOffers{offers: map[string]largestOffer{}, stale: map[string]bool{}}
		for label := range l.accounts {
			s.stale[label] = true
		}
		l.byClass[class] = s
	}
	for label := range s.stale {
		l.recompute(s, label, class)
	}
	return s
}

// recompute updates a node's offer.
func (l *Ledger) recompute(s *classOffers, label string, class volume.Spec) {
	delete(s.stale, label)
	if s.first == label {
		s.first = ""
	}
	offer, has := l.offer(label, class)
	if !has {
		delete(s.offers, label)
		return
	}
	s.offers[label] = largestOffer{offer.MaxVolumeSize, offer.Closed}
	if s.first != "" && s.before(label, s.first) {
		s.first = label
	}
}

// find determines the largest of all offers.
func (s *classOffers) find() {
	for label := range s.offers {
		if s.first == "" || s.before(label, s.first) {
			s.first = label
		}
	}
}

// before reports whether a's offer ranks before b's: the larger one first. Among equal ones, which are
// zero if one is closed, a closed node ranks first, as its reason helps people more than the size; then
// the label decides.
func (s *classOffers) before(a, b string) bool {
	x, y := s.offers[a], s.offers[b]
	switch {
	case x.maxVolumeSize != y.maxVolumeSize:
		return x.maxVolumeSize > y.maxVolumeSize
	case (x.closed == "") != (y.closed == ""):
		return x.closed != ""
	}
	return a < b
}

// touch records that a node's offers may have changed.
func (l *Ledger) touch(label string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offerAnew(label)
}

func (l *Ledger) offerAnew(label string) {
	for _, s := range l.byClass {
		s.stale[label] = true
	}
}
