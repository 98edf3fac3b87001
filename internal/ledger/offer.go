package ledger

import (
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Offer is what a node can offer to volumes of one class.
type Offer struct {
	Most volume.Bytes // the largest that a volume may be, to its user
	Room volume.Bytes // what the pool can still promise, overhead included
	Busy int          // percent of time in which the pool's disks have something to do
	// Closed says why the node takes no new volumes in the pool, behind the node's name; empty: it does.
	Closed string
}

// Offer returns what a node can offer to volumes of a class; false if it lacks the pool
// or has not reported.
func (l *Ledger) Offer(node string, class volume.Spec) (Offer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label := pv.NodeLabelValue(node)
	if a, there := l.accounts[label]; !there || a.node != node {
		return Offer{}, false
	}
	return l.offer(label, class)
}

// offer is what the node of a label, which has reported, can offer.
func (l *Ledger) offer(label string, class volume.Spec) (Offer, bool) {
	a, there := l.accounts[label]
	if !there || a.node == "" {
		return Offer{}, false
	}
	p, there := a.pools[class.Pool()]
	if !there {
		return Offer{}, false
	}
	o := Offer{Busy: p.busy, Closed: a.closed(class.Pool(), p)}
	if o.Closed != "" {
		return o, true
	}
	o.Room = max(0, l.left(a, class.Pool(), p))
	// A linear volume can have all, wherever that is. What replicas hold does not count
	// for other replicas.
	room, stays := o.Room, volume.Bytes(0)
	if class.Kind == volume.Dataset {
		o.Room, stays = max(0, o.Room-p.replicas), p.replicas
	}
	free := []volume.Bytes{o.Room}
	if class.Devices() > 1 {
		free = p.free(room, stays)
	}
	o.Most = volume.Largest(free, class, p.extent)
	if h, held := a.holds[class.Pool()]; held {
		if l.now().Before(h.until) {
			o.Most = min(o.Most, h.size)
		} else {
			delete(a.holds, class.Pool())
		}
	}
	return o, true
}
