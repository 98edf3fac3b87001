package ledger

import (
	"maps"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A departure is a PersistentVolume that is gone. It stays charged until the ledger has a report
// that is newer than its end: an older one counts the room that its volume holds as a claim's.
type departure struct {
	name string
	charge
	at uint64 // its number among all departures
}

// Report records what a node reports about itself, as the watch shows it. What is older than an answer
// of the API server itself (Confirm) says nothing, but has that asked again.
func (l *Ledger) Report(storage *flexlvmv1.NodeStorage) {
	label := pv.NodeLabelValue(storage.Name)
	l.mu.Lock()
	a, changed := l.account(label), true
	if v := versionOf(storage); storage.UID != "" && storage.UID == a.gone {
		changed = false
	} else if v != 0 && v < a.confirmed {
		a.behind = true
	} else {
		changed = a.take(storage)
	}
	l.mu.Unlock()
	if changed {
		l.changed(label)
	}
}

// take records a report, and reports whether it differs from the one before.
func (a *account) take(storage *flexlvmv1.NodeStorage) (changed bool) {
	pools := poolsOf(storage)
	changed = a.node != storage.Name || a.report != storage.UID || !maps.EqualFunc(a.pools, pools, pool.equal)
	a.called = storage.Name
	a.node, a.report, a.version, a.pools, a.strays = storage.Name, storage.UID, versionOf(storage), pools, straysOf(storage)
	if changed {
		clear(a.holds) // there may be room now
	}
	return changed
}

// Forget removes the report of a node that is gone.
func (l *Ledger) Forget(node string) {
	label := pv.NodeLabelValue(node)
	l.mu.Lock()
	a := l.account(label)
	a.gone = a.report
	a.node, a.report, a.pools, a.strays = "", "", nil, nil
	l.mu.Unlock()
	l.changed(label)
}

// Gone records that a PersistentVolume is gone. Its node has published before that the room of the volume
// is no claim's any more, but the watch of the reports may be behind that of the PersistentVolumes. So it
// stays charged until the API server itself has been asked for the report (Unconfirmed).
func (l *Ledger) Gone(name string) {
	l.mu.Lock()
	touched := l.goneLocked(name)
	l.mu.Unlock()
	for _, label := range touched {
		l.changed(label)
	}
}

func (l *Ledger) goneLocked(name string) (touched []string) {
	label, there := l.where[name]
	if !there {
		return nil
	}
	a := l.accounts[label]
	c := a.charged(name)
	l.drop(name)
	l.departures++
	a.departed = append(a.departed, departure{name: name, charge: c, at: l.departures})
	return []string{label}
}

// charged is what a PersistentVolume is charged, with what it is promised on top.
func (a *account) charged(name string) charge {
	if r, reserved := a.reserved[name]; reserved {
		return r.charge
	}
	c := a.written[name].charge()
	if grows, growing := a.growths[name]; growing && grows.Device > c.Device {
		return grows.charge
	}
	return c
}

// Unconfirmed reports whether the API server itself is to be asked for the report of a node, and of which. The
// answer serves all that has departed until at, which Confirm and Absent are to be told.
func (l *Ledger) Unconfirmed(label string) (node string, at uint64, ask bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, there := l.accounts[label]
	if !there || len(a.departed) == 0 && !a.behind {
		return "", 0, false
	}
	node = a.called
	if node == "" && pv.IsNodeName(label) {
		node = label
	}
	return node, l.departures, node != "" // its first report has it asked for, otherwise
}

// Confirm records a report that the API server itself gave. It was read after the departures up to number at, so it
// does not count them.
func (l *Ledger) Confirm(storage *flexlvmv1.NodeStorage, at uint64) {
	label := pv.NodeLabelValue(storage.Name)
	l.mu.Lock()
	a, v := l.account(label), versionOf(storage)
	// The watch may have shown a later one meanwhile. An answer that is older than the last one is that of
	// an API server that was restored from a backup.
	if deleted := storage.UID != "" && storage.UID == a.gone; !deleted && (v >= a.version || v < a.confirmed) {
		a.take(storage)
	}
	a.confirmed, a.behind = v, false
	a.forgive(at)
	l.mu.Unlock()
	l.changed(label)
}

// Absent records that the API server itself has no report of a node, and reports whether the watch shows none either:
// then nothing is offered there, and what has departed until at need not be charged.
func (l *Ledger) Absent(label string, at uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(label)
	if a.node != "" {
		return false
	}
	a.behind = false
	a.forgive(at)
	return true
}

// forgive ends the charges of what has departed until at.
func (a *account) forgive(at uint64) {
	n := 0
	for n < len(a.departed) && a.departed[n].at <= at {
		n++
	}
	if n == 0 {
		return
	}
	a.departed = append([]departure(nil), a.departed[n:]...)
	clear(a.holds) // there is room now
}

// leaving is what those that have departed still take of a pool.
func (a *account) leaving(in volume.PoolName, p pool) (sum volume.Bytes) {
	for _, d := range a.departed {
		sum += d.from(in, p)
	}
	return sum
}

// NodeOf returns the name of the node with this label value that has reported, and the
// UID of its report; false if there is none.
func (l *Ledger) NodeOf(label string) (name string, report string, reported bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, there := l.accounts[label]; there && a.node != "" {
		return a.node, string(a.report), true
	}
	return "", "", false
}
