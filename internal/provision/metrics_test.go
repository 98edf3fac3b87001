package provision_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/provision"
)

func TestMetrics(t *testing.T) {
	metrics := provision.NewMetrics()
	metrics.Leading(true)
	metrics.Refused(nil)
	families, err := metrics.Registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		require.NotContains(t, f.GetName(), "delete", "nothing is ever deleted here")
		if m := f.GetMetric()[0]; strings.HasPrefix(f.GetName(), "flexlvm_") {
			values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	require.Equal(t, 1.0, values["flexlvm_provisioner_leader"])
	require.Equal(t, 1.0, values["flexlvm_provisioner_refusals_total"])
	require.Equal(t, 1.0, values["flexlvm_build_info"])
}
