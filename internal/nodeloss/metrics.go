package nodeloss

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/flexlvm/flexlvm/internal/serve"
)

// Metrics holds the Prometheus metrics of the watch for lost nodes.
type Metrics struct {
	lostNodes      prometheus.Gauge
	lossInDoubt    prometheus.Gauge
	claimsReleased prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		lostNodes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flexlvm_provisioner_lost_nodes",
			Help: "Nodes that carry volumes and have been gone from the API for the grace period.",
		}),
		lossInDoubt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flexlvm_provisioner_node_loss_in_doubt",
			Help: "1 while so many nodes are missing at once that nothing is given up for any of them.",
		}),
		claimsReleased: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flexlvm_provisioner_node_loss_released_claims_total",
			Help: "Claims that were deleted because their node was lost and their class says onNodeLoss: release.",
		}),
	}
	registerer.MustRegister(m.lostNodes, m.lossInDoubt, m.claimsReleased)
	return m
}

// nodesLost records how many nodes are lost, and whether that is in doubt.
func (m *Metrics) nodesLost(n int, doubt bool) {
	m.lostNodes.Set(float64(n))
	m.lossInDoubt.Set(serve.Bool(doubt))
}

func (m *Metrics) claimReleased() { m.claimsReleased.Inc() }
