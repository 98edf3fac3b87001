package nfs

import (
	"github.com/prometheus/client_golang/prometheus"
	librarymetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// Metrics holds the Prometheus metrics of this control side.
type Metrics struct {
	Registry *prometheus.Registry

	library  librarymetrics.Metrics
	refusals prometheus.Counter
	turns    *prometheus.CounterVec
	leader   prometheus.Gauge
}

// NewMetrics returns the metrics in their own registry.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: serve.NewRegistry(),
		library:  librarymetrics.New("flexlvm_nfs_provisioner"),
		refusals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexlvm_nfs_provisioner_refusals_total",
			Help: "Attempts to provision a claim that were refused because of what the claim or its class says.",
		}),
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexlvm_nfs_provisioner_removal_turns_total",
			Help: "Removals of large directories that gave up their worker after a minute and continue later, by class. Each also counts as a failed deletion, in flexlvm_nfs_provisioner_persistentvolume_delete_failed_total.",
		}, []string{"class"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flexlvm_nfs_provisioner_leader",
			Help: "1 in the process that holds the leader lease, 0 in the others.",
		}),
	}
	m.Registry.MustRegister(
		m.refusals, m.turns, m.leader,
		m.library.PersistentVolumeClaimProvisionTotal,
		m.library.PersistentVolumeClaimProvisionFailedTotal,
		m.library.PersistentVolumeClaimProvisionDurationSeconds,
		m.library.PersistentVolumeDeleteTotal,
		m.library.PersistentVolumeDeleteFailedTotal,
		m.library.PersistentVolumeDeleteDurationSeconds,
	)
	return m
}

// Leading records whether this process holds the lease.
func (m *Metrics) Leading(yes bool) {
	m.leader.Set(0)
	if yes {
		m.leader.Set(1)
	}
}

func (m *Metrics) refused(*controlplane.Refusal) { m.refusals.Inc() }

func (m *Metrics) putOff(class string) { m.turns.WithLabelValues(class).Inc() }

// watch exports the number of calls that run on each server, and the age of the oldest. The number does not
// show whether a server responds: while a large directory is removed, a call runs at almost any time.
func (m *Metrics) watch(p *Provisioner) {
	gauge := func(name, help, export string, value func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"export": export}}, value)
	}
	for export, g := range p.gates {
		m.Registry.MustRegister(
			gauge("flexlvm_nfs_provisioner_waiting_calls", "Calls that are running on the NFS server of an export.",
				export, func() float64 { return float64(g.waiting()) }),
			gauge("flexlvm_nfs_provisioner_oldest_call_seconds", "For how many seconds the oldest running call has been running on the NFS server of an export; 0 if none is running. If it exceeds --io-timeout by far, the server does not answer.",
				export, func() float64 { return g.oldest().Seconds() }),
		)
	}
}
