package provision

import (
	"github.com/prometheus/client_golang/prometheus"
	librarymetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/growth"
	"github.com/flexlvm/flexlvm/internal/nodeloss"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// Metrics holds the provisioner's Prometheus metrics.
type Metrics struct {
	Registry *prometheus.Registry

	library  librarymetrics.Metrics
	refused  prometheus.Counter
	waiting  *prometheus.CounterVec
	leader   prometheus.Gauge
	written  prometheus.Counter
	failing  *prometheus.GaugeVec
	nodeLoss *nodeloss.Metrics
	growth   *growth.Metrics
}

// NewMetrics returns the metrics in their own registry.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: serve.NewRegistry(),
		library:  librarymetrics.New("flexlvm_provisioner"),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexlvm_provisioner_refusals_total",
			Help: "Attempts to provision a claim that were refused because of what the claim or its class says.",
		}),
		waiting: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flexlvm_provisioner_claim_warnings_total",
			Help: "Warnings to claims of pods that get no node, every five minutes to each for as long as it waits, by class and reason: Refused for what the claim or its class says, NoRoom where no node has been able to take it for five minutes.",
		}, []string{"class", "reason"}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flexlvm_provisioner_leader",
			Help: "1 in the process that holds the leader lease, 0 in the others.",
		}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexlvm_provisioner_capacity_writes_total",
			Help: "CSIStorageCapacity objects created, changed and deleted.",
		}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flexlvm_provisioner_controller_failing",
			Help: "1 while a controller of the provisioner, such as that of datasets, fails and is started again.",
		}, []string{"controller"}),
	}
	m.Registry.MustRegister(
		m.refused, m.waiting, m.leader, m.written, m.failing,
		// The library's metrics on deletion are omitted: it counts volumes that were left to their
		// nodes as deleted.
		m.library.PersistentVolumeClaimProvisionTotal,
		m.library.PersistentVolumeClaimProvisionFailedTotal,
		m.library.PersistentVolumeClaimProvisionDurationSeconds,
	)
	m.nodeLoss = nodeloss.NewMetrics(m.Registry)
	m.growth = growth.NewMetrics(m.Registry)
	return m
}

// Refused counts a refusal.
func (m *Metrics) Refused(*controlplane.Refusal) { m.refused.Inc() }

// Reasons for which a claim waits.
const (
	waitsRefused = "Refused"
	waitsNoRoom  = eventNoRoom
)

// warned counts a warning on a claim that waits.
func (m *Metrics) warned(class, reason string) { m.waiting.WithLabelValues(class, reason).Inc() }

// published counts a write of a capacity.
func (m *Metrics) published() { m.written.Inc() }

// controllerFailing returns the gauge that records whether a controller fails.
func (m *Metrics) controllerFailing(name string) prometheus.Gauge {
	return m.failing.WithLabelValues(name)
}

// Leading records whether this process holds the lease.
func (m *Metrics) Leading(yes bool) { m.leader.Set(serve.Bool(yes)) }
