package serve

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/flexlvm/flexlvm/internal/version"
)

// NewRegistry returns a registry with the metrics that every daemon has: of its runtime,
// its process and its release.
func NewRegistry() *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "flexlvm_build_info",
		Help:        "Always 1; the label says which release runs.",
		ConstLabels: prometheus.Labels{"version": version.String},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return registry
}

// Bool returns the value of a gauge for a condition: 1 if it holds, else 0.
func Bool(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
