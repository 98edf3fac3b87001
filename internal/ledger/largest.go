package ledger

import (
	"github.com/flexlvm/flexlvm/internal/volume"
)

// mostStandings is how many classes are kept in mind; beyond, all are forgotten. Classes
// come and go, and nobody tells the ledger of it.
const mostStandings = 200

// A Largest is the largest offer of some nodes to volumes of a class.
type Largest struct {
	Node  string       // that makes it; empty where none of them has the pool
	Most  volume.Bytes // the largest that a volume may be, to its user
	Nodes int          // that have the pool
	// Closed says why Node takes no new volumes, behind its name, where none of them can give any and one of them
	// takes none: the first of those by its label.
	Closed string
	// Reported is how many nodes have reported, allowed or not; counted only where Nodes is 0.
	Reported int
}

// A standing is what all nodes offer to one class. An offer is reckoned anew when its node
// has changed, not when somebody asks.
type standing struct {
	offers map[string]largestOffer // by label, of the nodes that have the pool
	stale  map[string]bool         // labels whose offers are to be reckoned anew
	first  string                  // label of the node with the largest; empty: not known
}

// A largestOffer is the part of an Offer that a standing keeps.
type largestOffer struct {
	most   volume.Bytes
	closed string
}

// Largest returns the largest offer to volumes of a class, of the nodes that allows says; nil: of all.
// It costs little while few nodes have changed since the last call for that class. allows must not call
// the ledger.
func (l *Ledger) Largest(class volume.Spec, allows func(node string) bool) Largest {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.standing(class)
	if allows != nil {
		return l.among(s, allows)
	}
	if s.first == "" {
		s.find()
	}
	return l.largest(s, s.first, len(s.offers))
}

// largest is the offer of the node of a label, the largest of so many; empty: of none.
func (l *Ledger) largest(s *standing, first string, nodes int) Largest {
	if first == "" {
		return Largest{Reported: l.reported()}
	}
	return Largest{Node: l.accounts[first].node, Most: s.offers[first].most, Closed: s.offers[first].closed, Nodes: nodes}
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

// among is the largest offer of the nodes that are allowed.
func (l *Ledger) among(s *standing, allows func(node string) bool) Largest {
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

// standing is what all nodes offer to a class now.
func (l *Ledger) standing(class volume.Spec) *standing {
	s, known := l.standings[class]
	if !known {
		if len(l.standings) >= mostStandings {
			clear(l.standings)
		}
		s = &standing{offers: map[string]largestOffer{}, stale: map[string]bool{}}
		for label := range l.accounts {
			s.stale[label] = true
		}
		l.standings[class] = s
	}
	for label := range s.stale {
		l.reckon(s, label, class)
	}
	return s
}

// reckon takes in what a node offers now.
func (l *Ledger) reckon(s *standing, label string, class volume.Spec) {
	delete(s.stale, label)
	if s.first == label {
		s.first = ""
	}
	offer, has := l.offer(label, class)
	if !has {
		delete(s.offers, label)
		return
	}
	s.offers[label] = largestOffer{offer.Most, offer.Closed}
	if s.first != "" && s.before(label, s.first) {
		s.first = label
	}
}

// find looks through all offers for the largest.
func (s *standing) find() {
	for label := range s.offers {
		if s.first == "" || s.before(label, s.first) {
			s.first = label
		}
	}
}

// before reports whether a offers more than b. Of two that offer as much, which is nothing if one of them takes no new
// volumes, that one comes first, as its reason is worth more to people than its size; or else the first by its label.
func (s *standing) before(a, b string) bool {
	x, y := s.offers[a], s.offers[b]
	switch {
	case x.most != y.most:
		return x.most > y.most
	case (x.closed == "") != (y.closed == ""):
		return x.closed != ""
	}
	return a < b
}

// touch notes that a node offers something else.
func (l *Ledger) touch(label string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offerAnew(label)
}

func (l *Ledger) offerAnew(label string) {
	for _, s := range l.standings {
		s.stale[label] = true
	}
}
