package ledger

import (
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Offer is the room that a node can offer to volumes of one class.
type Offer struct {
	MaxVolumeSize volume.Bytes // the largest usable size that a volume may have
	Room          volume.Bytes // what the pool can still promise, including overhead
	Busy          int          // percentage of time in which the pool's disks are busy
	// Closed is why the node takes no new volumes in the pool, phrased to follow the node's name;
	// empty: it does.
	Closed string
}

// Offer returns a node's offer to volumes of a class; false if the node lacks the pool or has not
// reported.
func (l *Ledger) Offer(node string, class volume.Spec) (Offer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label := pv.NodeLabelValue(node)
	if a, there := l.accounts[label]; !there || a.node != node {
		return Offer{}, false
	}
	return l.offer(label, class)
}

// offer returns the offer of the node with a label; false if it has not reported or lacks the pool.
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
	// A linear volume can use all of the room, on whichever devices it is. Room that replicas hold is
	// not available to other replicas.
	room, stays := o.Room, volume.Bytes(0)
	if class.Kind == volume.Dataset {
		o.Room, stays = max(0, o.Room-p.replicas), p.replicas
	}
	free := []volume.Bytes{o.Room}
	if class.Devices() > 1 {
		free = p.free(promise{room, stays, a.spread(class.Pool(), p)})
		// Of what is promised on several devices, a device may get less than is promised in total, so each may have
		// more left than its share of the room.
		share := o.Room / volume.Bytes(class.Devices())
		for i := range free {
			free[i] = min(free[i], share)
		}
	}
	o.MaxVolumeSize = volume.Largest(free, class, p.extent)
	if h, held := a.holds[class.Pool()]; held {
		if l.now().Before(h.until) {
			o.MaxVolumeSize = min(o.MaxVolumeSize, h.size)
		} else {
			delete(a.holds, class.Pool())
		}
	}
	return o, true
}
