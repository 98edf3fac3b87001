//go:build cluster

package provisioner_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// testMonitoring applies monitoring/ with the CustomResourceDefinitions of a release of the Prometheus
// operator.
func (b *bed) testMonitoring(t *testing.T) {
	const module = "github.com/prometheus-operator/prometheus-operator"
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-C", filepath.Join(b.source, "test/cluster/prometheusoperator"), "-json", module).Output()
	require.NoError(t, err)
	var operator struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &operator))
	for _, kind := range []string{"prometheusrules", "podmonitors", "servicemonitors"} {
		b.kubectl(t, "create", "-f", filepath.Join(operator.Dir, "example/prometheus-operator-crd/monitoring.coreos.com_"+kind+".yaml"))
	}
	require.NoError(t, b.cluster.Established(t.Context()))
	for folder, kinds := range map[string][]string{
		"monitoring":                {"prometheusrule.monitoring.coreos.com/flexlvm created", "podmonitor.monitoring.coreos.com/flexlvm created", "configmap/flexlvm-dashboard created"},
		"monitoring/servicemonitor": {"servicemonitor.monitoring.coreos.com/flexlvm created", "service/flexlvm-metrics created"},
	} {
		var said string
		await.Until(t, longest, func() string { // an established definition is served a moment later
			said, err = b.cluster.Kubectl(t.Context(), "apply", "--dry-run=server", "--validate=strict", "-k", filepath.Join(b.source, folder))
			return await.Missing(err == nil, "apply %s: %v", folder, err)
		})
		for _, kind := range kinds {
			require.Contains(t, said, kind)
		}
	}
}
