package ledger

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A departure is a PersistentVolume that is gone. It stays charged until the ledger has a report that
// is newer than its end, or, if its node has not released it, until the node has reported `reports` times more: an older
// report still counts the volume's space as allocatable.
type departure struct {
	name string
	charge
	version   uint64 // of the object, as last seen; 0 if unknown
	at        uint64 // its sequence number among all departures
	confirmed bool   // a report was read from the API server since
	// reports is how often the node must report after that: 0 if it has released the volume, for which it reports
	// before. Otherwise somebody has removed the finalizer, and the node observes that later. Its next report may be of
	// an observation that began before, the one after that is not.
	reports int
}

// Gone records that a PersistentVolume is gone. Its node has published before that the volume's space
// is not allocatable any more, but the watch of the reports may lag behind that of the
// PersistentVolumes. So the volume stays charged until the report has been read from the API server
// (Unconfirmed), or for longer if its node has not released it.
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
	was := a.written[name]
	l.departures++
	d := departure{name: name, charge: a.charged(name), version: was.version, at: l.departures}
	if c := was.charge(); c.in != "" && !a.observed.IsZero() && (!c.removing || !a.works(l.now())) {
		d.reports = 2
	}
	l.drop(name)
	a.departed = append(a.departed, d)
	return []string{label}
}

// roundFailed reports whether a report is of a round that has certainly failed. With the reason ToolsMissing it may have
// failed or not.
func roundFailed(storage *flexlvmv1.NodeStorage) bool {
	ready := meta.FindStatusCondition(storage.Status.Conditions, flexlvmv1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionFalse && (ready.Reason == flexlvmv1.ReasonLVMFailed || ready.Reason == flexlvmv1.ReasonAPIUnavailable)
}

// works reports whether the node has reported recently: every flexlvmv1.ReportInterval, and before it releases a
// volume.
func (a *account) works(now time.Time) bool { return now.Sub(a.observedAt) < flexlvmv1.MaxReportAge }

// observe records when the node made its report, by its own clock, and ends departures accordingly. After a failed
// round, a node reports its pools as they were.
func (a *account) observe(storage *flexlvmv1.NodeStorage, now time.Time) (ended bool) {
	at := storage.Status.ObservedTime
	if !a.observedAt.IsZero() && (a.observed.Equal(&at) || roundFailed(storage)) {
		return false
	}
	a.observed, a.observedAt = at, now
	if ailingNode(storage) != "" {
		return false // the pools may be as they were; nothing is promised there, so departures may stay charged
	}
	for i := range a.departed {
		if d := &a.departed[i]; d.confirmed {
			d.reports--
		}
	}
	return a.endDeparturesNow()
}

// confirmDepartures records that a report was read after the departures up to number at, and ends those that need no
// further report.
func (a *account) confirmDepartures(at uint64) {
	for i := range a.departed {
		if d := &a.departed[i]; d.at <= at {
			d.confirmed = true
		}
	}
	a.endDeparturesNow()
}

// unconfirmDepartures causes a report to be read from the API server for all departures.
func (a *account) unconfirmDepartures() {
	for i := range a.departed {
		a.departed[i].confirmed = false
	}
}

// endDeparturesUpTo ends the charges of the departures up to number at, including those that wait for reports.
func (a *account) endDeparturesUpTo(at uint64) {
	a.endDepartures(func(d departure) bool { return d.at <= at })
}

// endDeparturesNow ends those departures that need not be charged any more. A volume whose PersistentVolume was made
// again, as by a move to the other driver, is charged with that.
func (a *account) endDeparturesNow() (ended bool) {
	return a.endDepartures(func(d departure) bool {
		_, again := a.written[d.name]
		return d.confirmed && (d.reports <= 0 || again)
	})
}

// endDepartures ends the charges of some departures.
func (a *account) endDepartures(ends func(departure) bool) (ended bool) {
	if !slices.ContainsFunc(a.departed, ends) {
		return false
	}
	a.departed = slices.DeleteFunc(slices.Clone(a.departed), ends)
	clear(a.holds) // there is more room now
	return true
}

// hasSeenGone reports whether the watch has shown this object, or a later version of it, and then its end. An
// object of the same name that was created afterwards has a later version.
func (a *account) hasSeenGone(object *corev1.PersistentVolume) bool {
	version := versionOf(object)
	return version != 0 && slices.ContainsFunc(a.departed, func(d departure) bool {
		return d.name == object.Name && d.version >= version
	})
}

// leaving returns the space of a pool that is still charged to departures.
func (a *account) leaving(in volume.PoolName, p pool) (sum volume.Bytes) {
	for _, d := range a.departed {
		sum += d.from(in, p)
	}
	return sum
}
