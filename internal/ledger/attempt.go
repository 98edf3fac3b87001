package ledger

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// An attempt is one call of Reserve.
type attempt struct {
	wants   []Want
	open    []Want // those that need room
	settled []Want
	dropped []droppedReservation
}

// A droppedReservation is an earlier reservation of an open want, which the attempt has dropped.
type droppedReservation struct {
	name  string // of the reservation
	pv    string // of the want
	label string
	reservation
}

// attemptOn returns the name of the reservation for a PersistentVolume that an earlier attempt may have written on a
// node, while a later one has failed there or is for another node.
func attemptOn(label, pv string) string { return pv + " (attempt on " + label + ")" }

// Created records a PersistentVolume that this process has created for a reservation. If the ledger has neither a
// reservation nor an entry for it, the watch has already shown the PersistentVolume and its deletion, so Created
// records nothing: no later event would end the charge.
func (l *Ledger) Created(object *corev1.PersistentVolume) {
	l.mu.Lock()
	var touched []string
	_, known := l.where[object.Name]
	_, earlier := l.where[attemptOn(object.Labels[pv.LabelNode], object.Name)]
	if known || earlier {
		touched = l.writtenLocked(object)
	}
	l.mu.Unlock()
	for _, label := range touched {
		l.changed(label)
	}
}

// divide begins an attempt on a node: it drops the reservations of the wants that need room.
func (l *Ledger) divide(label string, wants []Want) (t attempt, touched []string) {
	t.wants = wants
	for _, w := range wants {
		switch {
		case !w.hasTurn(wants) && l.settled(w.PV):
			t.settled = append(t.settled, w)
		case !l.written(w.PV):
			t.open = append(t.open, w)
			for _, name := range []string{w.PV, attemptOn(label, w.PV)} {
				if at, reserved := l.where[name]; reserved {
					t.dropped = append(t.dropped, droppedReservation{name, w.PV, at, l.accounts[at].reserved[name]})
					l.drop(name)
					touched = append(touched, at)
				}
			}
		}
	}
	return t, touched
}

// keepEarlier ends an attempt. If an earlier attempt may have written a PersistentVolume on some node, its room stays
// reserved there until the watch shows it or the reservation expires, whether or not this attempt has reserved room.
// On the same node both are for the same volume.
func (l *Ledger) keepEarlier(label string, t attempt, reserved bool) {
	for _, d := range t.dropped {
		switch {
		case !d.writing || !l.now().Before(d.until):
		case !reserved || d.label != label:
			l.reserveFor(d.label, attemptOn(d.label, d.pv), d.reservation)
		default:
			r := l.accounts[label].reserved[d.pv]
			r.writing, r.until = true, later(r.until, d.until)
			l.accounts[label].reserved[d.pv] = r
		}
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Fits returns the error that Reserve would return for one volume, and reserves nothing. Under the
// lock, it drops the volume's reservations, tries, and restores them.
func (l *Ledger) Fits(node string, w Want) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written(w.PV) {
		return nil
	}
	label := pv.NodeLabelValue(node)
	t, _ := l.divide(label, []Want{w})
	_, _, err := l.reserveOpen(label, node, t, nil)
	l.drop(w.PV)
	for _, d := range t.dropped {
		l.reserveFor(d.label, d.name, d.reservation)
	}
	return err
}

// WrittenOn returns the node on which an attempt may have written a PersistentVolume that the watch does not show yet;
// false if there is none.
func (l *Ledger) WrittenOn(pv string) (node string, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written(pv) || !l.settled(pv) {
		return "", false
	}
	node = l.accounts[l.where[pv]].node
	return node, node != ""
}
