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
}

// A standing is what all nodes offer to one class. An offer is reckoned anew when its node
// has changed, not when somebody asks.
type standing struct {
	offers map[string]volume.Bytes // by label, of the nodes that have the pool
	stale  map[string]bool         // labels whose offers are to be reckoned anew
	first  string                  // label of the node with the largest; empty: not known
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
	if s.first == "" {
		return Largest{}
	}
	return Largest{Node: l.accounts[s.first].node, Most: s.offers[s.first], Nodes: len(s.offers)}
}

// among is the largest offer of the nodes that are allowed.
func (l *Ledger) among(s *standing, allows func(node string) bool) (out Largest) {
	first := ""
	for label := range s.offers {
		if !allows(l.accounts[label].node) {
			continue
		}
		if out.Nodes++; first == "" || s.before(label, first) {
			first = label
			out.Node, out.Most = l.accounts[label].node, s.offers[label]
		}
	}
	return out
}

// standing is what all nodes offer to a class now.
func (l *Ledger) standing(class volume.Spec) *standing {
	s, known := l.standings[class]
	if !known {
		if len(l.standings) >= mostStandings {
			clear(l.standings)
		}
		s = &standing{offers: map[string]volume.Bytes{}, stale: map[string]bool{}}
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
	s.offers[label] = offer.Most
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

// before reports whether a offers more than b; of two that offer as much it is the one
// that comes first by its label.
func (s *standing) before(a, b string) bool {
	return s.offers[a] > s.offers[b] || s.offers[a] == s.offers[b] && a < b
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
