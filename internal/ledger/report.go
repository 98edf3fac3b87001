package ledger

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A departure is a PersistentVolume that is gone. It stays charged until the ledger has a report that
// is newer than its end: an older report still counts the volume's space as allocatable.
type departure struct {
	name string
	charge
	version uint64 // of the object, as last seen; 0 if unknown
	at      uint64 // its sequence number among all departures
}

// Report records a node's report, as the watch shows it. A report that is older than the last one read
// from the API server (Confirm) is ignored, but causes another such read.
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

// take records a report and returns whether it differs from the previous one.
func (a *account) take(storage *flexlvmv1.NodeStorage) (changed bool) {
	pools := poolsOf(storage)
	changed = a.node != storage.Name || a.report != storage.UID || !maps.EqualFunc(a.pools, pools, pool.equal)
	a.lastName = storage.Name
	a.node, a.report, a.version, a.pools, a.strays = storage.Name, storage.UID, versionOf(storage), pools, straysOf(storage)
	if changed {
		clear(a.holds) // there may be more room now
	}
	return changed
}

// Forget removes a node's report, whose NodeStorage is gone. The node may have made another one since, which was read
// from the API server (Confirm) before the watch shows it: that report stays.
func (l *Ledger) Forget(storage *flexlvmv1.NodeStorage) {
	label := pv.NodeLabelValue(storage.Name)
	l.mu.Lock()
	a := l.account(label)
	a.gone = storage.UID
	if a.report == storage.UID {
		a.node, a.report, a.pools, a.strays = "", "", nil, nil
	}
	l.mu.Unlock()
	l.changed(label)
}

// Gone records that a PersistentVolume is gone. Its node has published before that the volume's space
// is not allocatable any more, but the watch of the reports may lag behind that of the
// PersistentVolumes. So the volume stays charged until the report has been read from the API server
// (Unconfirmed).
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
	c, version := a.charged(name), a.written[name].version
	l.drop(name)
	l.departures++
	a.departed = append(a.departed, departure{name: name, charge: c, version: version, at: l.departures})
	return []string{label}
}

// hasSeenGone reports whether the watch has shown this object, or a later version of it, and then its end. An
// object of the same name that was created afterwards has a later version.
func (a *account) hasSeenGone(object *corev1.PersistentVolume) bool {
	version := versionOf(object)
	return version != 0 && slices.ContainsFunc(a.departed, func(d departure) bool {
		return d.name == object.Name && d.version >= version
	})
}

// charged returns the charge of a PersistentVolume, including promised growth.
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

// Unconfirmed reports whether a node's report must be read from the API server, and returns the node's
// name. The result covers all departures up to number at, which is to be passed to Confirm or Absent.
func (l *Ledger) Unconfirmed(label string) (node string, at uint64, ask bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, there := l.accounts[label]
	if !there || len(a.departed) == 0 && !a.behind {
		return "", 0, false
	}
	node = a.lastName
	if node == "" && pv.IsNodeName(label) {
		node = label
	}
	return node, l.departures, node != "" // if the name is unknown, the first report causes the read
}

// Confirm records a report that was read from the API server after the departures up to number at, so
// that it does not count their volumes as allocatable.
func (l *Ledger) Confirm(storage *flexlvmv1.NodeStorage, at uint64) {
	label := pv.NodeLabelValue(storage.Name)
	l.mu.Lock()
	a, v := l.account(label), versionOf(storage)
	// The watch may have shown a later report meanwhile. If this report is older than the last one that
	// was read, the API server was restored from a backup.
	if deleted := storage.UID != "" && storage.UID == a.gone; !deleted && (v >= a.version || v < a.confirmed) {
		a.take(storage)
	}
	a.confirmed, a.behind = v, false
	a.confirmDepartures(at)
	l.mu.Unlock()
	l.changed(label)
}

// Absent records that the API server has no report of a node, and reports whether the watch shows none
// either: then the node offers nothing, and departures up to number at need not be charged.
func (l *Ledger) Absent(label string, at uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(label)
	if a.node != "" {
		return false
	}
	a.behind = false
	a.confirmDepartures(at)
	return true
}

// confirmDepartures ends the charges of the departures up to number at.
func (a *account) confirmDepartures(at uint64) {
	n := 0
	for n < len(a.departed) && a.departed[n].at <= at {
		n++
	}
	if n == 0 {
		return
	}
	a.departed = append([]departure(nil), a.departed[n:]...)
	clear(a.holds) // there is more room now
}

// leaving returns the space of a pool that is still charged to departures.
func (a *account) leaving(in volume.PoolName, p pool) (sum volume.Bytes) {
	for _, d := range a.departed {
		sum += d.from(in, p)
	}
	return sum
}

// NodeOf returns the name of the node with this label value and the UID of its report; false if it has
// not reported.
func (l *Ledger) NodeOf(label string) (name string, report string, reported bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, there := l.accounts[label]; there && a.node != "" {
		return a.node, string(a.report), true
	}
	return "", "", false
}
