//go:build cluster

package installer_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/built"
)

// testHelm tests the life of a release of the chart, starting where nothing is installed.
func (b *bed) testHelm(t *testing.T) {
	// As tools/chart builds it.
	require.NoError(t, built.Go(t.Context(), filepath.Join(b.source, "tools/chart"), filepath.Join(b.tools, "helm"), "helm.sh/helm/v4/cmd/helm", "-trimpath"))
	b.install.dir = b.world(t)

	notes := b.install.run(t, "helm install flexlvm charts/flexlvm --namespace kube-system")
	require.Contains(t, notes, driver+" vg create")
	for _, command := range []string{"kubectl label node NODE flexlvm.io/disks=local", "kubectl apply -f examples/volumegroup.yaml", "kubectl get nodestorages"} {
		require.Contains(t, notes, command)
		require.Contains(t, b.install.commands, command, "the guide's, which were run")
	}
	b.rolledOut(t)
	b.testByHand(t)
	b.install.run(t, "helm upgrade flexlvm charts/flexlvm --namespace kube-system --reset-then-reuse-values --set gc.flags.high-threshold-percent=90")
	b.rolledOut(t)
	require.Contains(t, b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "-o", "jsonpath={.spec.template.spec.containers[0].args}"),
		"--high-threshold-percent=90")
	require.Contains(t, b.install.run(t, "helm test flexlvm --namespace kube-system"), "Succeeded")

	b.testDriverOfHelmIsRemoved(t)
	b.testBackWithHelm(t)
	b.testDriverOfHelmIsRemoved(t)
	b.testUninstallWithHelm(t)
	b.testTakeOver(t)
}

// testUninstallWithHelm uninstalls the release, which leaves the definitions and the namespace, and installs it again.
func (b *bed) testUninstallWithHelm(t *testing.T) {
	b.install.shown(t, "helm uninstall")
	b.helm(t, "uninstall", "flexlvm", "--wait")
	const definition = "customresourcedefinition.apiextensions.k8s.io/%s.flexlvm.io\n"
	require.Equal(t, fmt.Sprintf(strings.Repeat(definition, 5), "localvolumes", "nodestorages", "volumediscoveries", "volumegroups", "volumemanagers")+"namespace/flexlvm-system\n",
		b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "-A",
			"deployments,daemonsets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,storageclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces"),
		"with the definitions all that they define would go")
	b.install.run(t, "helm install flexlvm charts/flexlvm --namespace kube-system") // also if what it leaves still exists
}

// testTakeOver replaces the release by an installation by kustomize, which Helm takes over and upgrades.
func (b *bed) testTakeOver(t *testing.T) {
	b.helm(t, "uninstall", "flexlvm", "--wait")
	b.install.run(t, "kubectl delete namespace flexlvm-system")
	b.install.run(t, "kubectl apply -k installer/")
	b.install.run(t, "helm install flexlvm charts/flexlvm --namespace kube-system --take-ownership --server-side=false")
	// kubectl has set the flags as well, and Helm changes one.
	b.install.run(t, "helm upgrade flexlvm charts/flexlvm --namespace kube-system --reset-then-reuse-values --set gc.flags.high-threshold-percent=90")
	require.Contains(t, b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "-o", "jsonpath={.spec.template.spec.containers[0].args}"),
		"--high-threshold-percent=90")
	// Everything would be deleted with the namespace.
	b.helm(t, "upgrade", "flexlvm", "charts/flexlvm", "--reset-then-reuse-values", "--set=namespace.create=false")
	require.Equal(t, "Active", b.kubectl(t, "get", "namespace", "flexlvm-system", "-o", "jsonpath={.status.phase}"))
	b.rolledOut(t)
}

// helm runs helm for the releases in kube-system.
func (b *bed) helm(t *testing.T, args ...string) {
	t.Helper()
	cmd := b.Command(t.Context(), append([]string{filepath.Join(b.tools, "helm"), "--kubeconfig=" + b.AdminKubeconfig(), "--namespace=kube-system"}, args...)...)
	cmd.Dir = b.install.dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// testDriverOfHelmIsRemoved removes the driver, which nothing uses any longer.
func (b *bed) testDriverOfHelmIsRemoved(t *testing.T) {
	b.install.run(t, "kubectl apply -k installer/uninstall/")
	b.install.run(t, "kubectl rollout status -n flexlvm-system daemonset/flexlvm-installer")
	b.driverIsGone(t)
}

// testBackWithHelm reverts the changes that uninstalling made to the DaemonSets.
func (b *bed) testBackWithHelm(t *testing.T) {
	b.kubectl(t, "patch", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "--type=json", "-p",
		`[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--max-age=1s"}]`) // as the guide's step 2 does
	b.install.run(t, "kubectl delete -n flexlvm-system daemonset/flexlvm-installer daemonset/flexlvm-gc")
	b.install.run(t, "helm upgrade flexlvm charts/flexlvm --namespace kube-system --reset-then-reuse-values")
	b.rolledOut(t) // the installer is Ready once its driver is installed
	require.Empty(t, b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-installer", "-o", "jsonpath={.spec.template.spec.initContainers}"))
	args := b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	require.NotContains(t, args, "--max-age=1s")
	require.Contains(t, args, "--high-threshold-percent=90", "the values are kept")
}

// testByHand does what a person does on a node whose daemon will never run again, and creates a group
// by hand where there is no daemon yet.
func (b *bed) testByHand(t *testing.T) {
	name := b.volume(t)
	b.kubectl(t, "delete", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "--cascade=foreground") // with its pod, which would continue otherwise
	b.kubectl(t, "delete", "pvc", "data")
	require.Contains(t, b.install.root(t, "flexlvm volumes show NAME", "NAME", name), name)
	b.install.shown(t, "lvremove flexlvm/NAME")
	b.onNode(t, "sh", "-c", "echo y | lvremove flexlvm/"+name)
	b.install.root(t, "rm -f /var/lib/flexlvm/volumes/flexlvm/NAME", "NAME", name)
	b.install.run(t, "kubectl delete pv NAME --ignore-not-found --wait=false", "NAME", name)
	b.install.run(t, `kubectl patch pv NAME --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'`, "NAME", name)
	b.kubectl(t, "wait", "--for=delete", "pv/"+name, "--timeout=1m")
	b.install.shown(t, "kubectl delete pv NAME")

	device := strings.TrimSpace(b.onNode(t, "pvs", "--noheadings", "-o", "pv_name", "-S", "vg_name=flexlvm"))
	b.onNode(t, "vgremove", "-q", "flexlvm")
	b.onNode(t, "pvremove", "-q", device)
	b.install.root(t, "ln -s /usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm /usr/local/sbin/")
	b.install.root(t, "flexlvm vg create /dev/sdb", "/dev/sdb", device)
	b.install.root(t, "flexlvm doctor")
}
