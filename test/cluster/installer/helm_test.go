//go:build cluster

package installer_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// testHelm is the life of a release of the chart, where nothing is installed.
func (b *bed) testHelm(t *testing.T) {
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	program := filepath.Join(cache, "helm")
	// As tools/chart builds it.
	require.NoError(t, built.Go(t.Context(), filepath.Join(b.source, "tools/chart"), program, "helm.sh/helm/v4/cmd/helm", "-trimpath"))
	chart := filepath.Join(b.source, "charts/flexlvm")
	helm := func(args ...string) string {
		kubeconfig := "--kubeconfig=" + b.AdminKubeconfig()
		out, err := b.Command(t.Context(), append([]string{program, kubeconfig, "--namespace=kube-system", "--timeout=4m"}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}

	notes := helm("install", "flexlvm", chart)
	require.Contains(t, notes, "vg create")
	b.rolledOut(t)
	b.onNode(t, driver, "doctor")
	require.Contains(t, helm("test", "flexlvm"), "Succeeded")

	helm("upgrade", "flexlvm", chart, "--set=gc.flags.high-threshold-percent=90", "--set=installer.flags.interval=5m")
	b.rolledOut(t)
	require.Contains(t, b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "-o", "jsonpath={.spec.template.spec.containers[0].args}"),
		"--high-threshold-percent=90")

	helm("uninstall", "flexlvm", "--wait")
	const definition = "customresourcedefinition.apiextensions.k8s.io/%s.flexlvm.io\n"
	require.Equal(t, fmt.Sprintf(strings.Repeat(definition, 3), "nodestorages", "volumegroups", "volumemanagers"),
		b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "-A",
			"deployments,daemonsets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,storageclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces"),
		"with the definitions all that they define would go")
	helm("install", "flexlvm", chart) // also where the definitions are still there
	b.rolledOut(t)
}
