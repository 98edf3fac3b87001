package nodeagent_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// BenchmarkRound measures a round on a node with 500 volumes, without the time that LVM takes: the fake engine
// answers immediately.
func BenchmarkRound(b *testing.B) {
	r := newRig(b)
	r.engine.pools[0].Size += 900 * volume.GiB
	r.engine.pools[0].Free += 900 * volume.GiB
	for i := range 500 {
		state := volume.Ready
		if i%2 == 0 {
			state = volume.Unreferenced
		}
		name := fmt.Sprintf("pvc-%08d-aaaa-bbbb-cccc-dddddddddddd", i)
		r.volume(name, state, 1)
		if state == volume.Ready {
			r.api.put(object(name, 1))
		}
	}
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	for b.Loop() {
		r.rounds(0)
	}
	families, err := r.registry.Gather()
	require.NoError(b, err)
	for _, f := range families {
		if f.GetName() == "flexlvm_gc_round_duration_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			b.ReportMetric(1000*h.GetSampleSum()/float64(h.GetSampleCount()), "ms/round")
		}
	}
}
