package growth

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flexlvm/flexlvm/internal/ledger"
)

// Metrics counts the claims that request growth and have not been granted it.
type Metrics struct {
	growths *prometheus.Desc
	index   atomic.Pointer[index] // nil while this process is not the leader
}

// NewMetrics returns Metrics that are registered with registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{growths: prometheus.NewDesc("flexlvm_provisioner_growths",
		"Claims that ask for more and have not been granted it, by reason: Waiting for room, Refused because it can never be had, MakingRoom while its room is being freed.",
		[]string{"reason"}, nil)}
	registerer.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.growths }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	counts := map[ledger.Outcome]int{}
	if x := m.index.Load(); x != nil {
		counts = x.outcomes()
	}
	for _, outcome := range []ledger.Outcome{ledger.Waiting, ledger.Refused, ledger.MakingRoom} {
		out <- prometheus.MustNewConstMetric(m.growths, prometheus.GaugeValue, float64(counts[outcome]), string(outcome))
	}
}
