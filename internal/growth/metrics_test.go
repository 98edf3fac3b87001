package growth

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// growths returns the number of claims that the metrics count, by reason. It omits reasons without claims.
func (w *world) growths() map[string]int {
	w.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.c.Metrics)
	families, err := registry.Gather()
	require.NoError(w.t, err)
	out := map[string]int{}
	for _, m := range families[0].GetMetric() {
		out[m.GetLabel()[0].GetValue()] = int(m.GetGauge().GetValue())
	}
	require.Len(w.t, out, 3)
	for reason, n := range out {
		if n == 0 {
			delete(out, reason)
		}
	}
	return out
}

// A claim counts until its growth is granted or withdrawn, under the reason that was last reported on it.
func TestGrowthsAreCounted(t *testing.T) {
	w := newWorld(t, 100*gib)
	for _, name := range []string{"one", "two", "three"} {
		w.bind(name, gib)
	}
	w.make("old", volume.Unreferenced, 60*gib)
	w.settle()
	require.Empty(t, w.growths())

	w.ask("one", 400*volume.TiB)
	w.ask("two", 97*gib)
	w.settle()
	require.Equal(t, map[string]int{"Refused": 1, "Waiting": 1}, w.growths())
	w.ask("three", 60*gib)
	w.serve()
	require.Equal(t, map[string]int{"Refused": 1, "Waiting": 1, "MakingRoom": 1}, w.growths())

	w.restart()
	require.Empty(t, w.growths(), "nothing is known yet")
	w.watch()
	require.Equal(t, map[string]int{"Refused": 1, "Waiting": 1, "MakingRoom": 1}, w.growths(), "as the claims say")

	w.settle()
	require.Equal(t, map[string]int{"Refused": 1, "Waiting": 1}, w.growths(), "the third is granted")
	w.ask("one", gib)
	w.ask("two", 2*gib)
	w.settle()
	require.Empty(t, w.growths())
}

// A process that is not the leader counts no claims.
func TestNoGrowthsWithoutAController(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families[0].GetMetric(), 3)
	for _, m := range families[0].GetMetric() {
		require.Zero(t, m.GetGauge().GetValue())
	}
}
