package ledger

import (
	"maps"
	"slices"
	"time"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
)

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
		changed = a.take(storage, l.now())
	}
	l.mu.Unlock()
	if changed {
		l.changed(label)
	}
}

// take records a report and returns whether it differs from the previous one.
func (a *account) take(storage *flexlvmv1.NodeStorage, now time.Time) (changed bool) {
	pools, ended := poolsOf(storage), a.observe(storage, now)
	changed = ended || a.node != storage.Name || a.report != storage.UID || !maps.EqualFunc(a.pools, pools, pool.equal)
	a.lastName = storage.Name
	a.node, a.report, a.version, a.pools, a.strays = storage.Name, storage.UID, versionOf(storage), pools, straysOf(storage)
	if changed {
		clear(a.holds) // there may be more room now
	}
	return changed
}

// Forget removes a node's report, whose NodeStorage is gone. The node may have made another one since, which was read
// from the API server (Confirm) before the watch shows it: that report stays. Otherwise the API server is asked again for
// all departures, because the node may be gone, too, and then no report ends those that wait for one.
func (l *Ledger) Forget(storage *flexlvmv1.NodeStorage) {
	label := pv.NodeLabelValue(storage.Name)
	l.mu.Lock()
	a := l.account(label)
	a.gone = storage.UID
	if a.report == storage.UID {
		a.node, a.report, a.pools, a.strays = "", "", nil, nil
		a.unconfirmDepartures()
	}
	l.mu.Unlock()
	l.changed(label)
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
	if !there || !a.behind && !slices.ContainsFunc(a.departed, func(d departure) bool { return !d.confirmed }) {
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
	deleted := storage.UID != "" && storage.UID == a.gone
	if !deleted && (v >= a.version || v < a.confirmed) {
		a.take(storage, l.now())
	}
	a.confirmed, a.behind = v, false
	if deleted && a.node == "" {
		a.endDeparturesUpTo(at) // as in Absent
	} else {
		a.confirmDepartures(at)
	}
	l.mu.Unlock()
	l.changed(label)
}

// Absent records that the API server has no report of a node, and reports whether the watch shows none
// either: then the node offers nothing, and departures up to number at need not be charged, nor wait for further reports.
func (l *Ledger) Absent(label string, at uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(label)
	if a.node != "" {
		return false
	}
	a.behind = false
	a.endDeparturesUpTo(at)
	return true
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
