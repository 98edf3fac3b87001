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

// testHelm is the life of a release of the chart, where nothing is installed.
func (b *bed) testHelm(t *testing.T) {
	// As tools/chart builds it.
	require.NoError(t, built.Go(t.Context(), filepath.Join(b.source, "tools/chart"), filepath.Join(b.tools, "helm"), "helm.sh/helm/v4/cmd/helm", "-trimpath"))
	guide := b.install
	guide.dir = b.world(t)
	helm := func(args string) string {
		return guide.run(t, "helm "+args+" --namespace kube-system")
	}

	notes := helm("install flexlvm charts/flexlvm")
	require.Contains(t, notes, driver+" vg create")
	for _, command := range []string{"kubectl label node NODE flexlvm.io/disks=local", "kubectl apply -f examples/volumegroup.yaml", "kubectl get nodestorages"} {
		require.Contains(t, notes, command)
		require.Contains(t, guide.commands, command, "the guide's, which were run")
	}
	b.rolledOut(t)
	b.testByHand(t)
	guide.run(t, "helm upgrade flexlvm charts/flexlvm --namespace kube-system --set gc.flags.high-threshold-percent=90")
	b.rolledOut(t)
	require.Contains(t, b.kubectl(t, "get", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "-o", "jsonpath={.spec.template.spec.containers[0].args}"),
		"--high-threshold-percent=90")
	require.Contains(t, helm("test flexlvm"), "Succeeded")

	guide.shown(t, "helm uninstall")
	out, err := b.Command(t.Context(), filepath.Join(b.tools, "helm"), "--kubeconfig="+b.AdminKubeconfig(), "uninstall", "flexlvm", "--namespace=kube-system", "--wait").CombinedOutput()
	require.NoError(t, err, string(out))
	const definition = "customresourcedefinition.apiextensions.k8s.io/%s.flexlvm.io\n"
	require.Equal(t, fmt.Sprintf(strings.Repeat(definition, 3), "nodestorages", "volumegroups", "volumemanagers"),
		b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "-A",
			"deployments,daemonsets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,storageclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces"),
		"with the definitions all that they define would go")
	helm("install flexlvm charts/flexlvm") // also where the definitions are still there
	b.rolledOut(t)
}

// testByHand is what a person does on a node whose daemon will never run again, and where
// there is none yet: a group is made by hand.
func (b *bed) testByHand(t *testing.T) {
	guide, name := b.install, b.volume(t)
	b.kubectl(t, "delete", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "--cascade=foreground") // with its pod, which would go on
	b.kubectl(t, "delete", "pvc", "data")
	require.Contains(t, guide.root(t, "flexlvm volumes show NAME", "NAME", name), name)
	guide.shown(t, "lvremove flexlvm/NAME")
	b.onNode(t, "sh", "-c", "echo y | lvremove flexlvm/"+name)
	guide.root(t, "rm -f /var/lib/flexlvm/volumes/flexlvm/NAME", "NAME", name)
	guide.run(t, "kubectl delete pv NAME --ignore-not-found --wait=false", "NAME", name)
	guide.run(t, `kubectl patch pv NAME --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'`, "NAME", name)
	b.kubectl(t, "wait", "--for=delete", "pv/"+name, "--timeout=1m")
	guide.shown(t, "kubectl delete pv NAME")

	device := strings.TrimSpace(b.onNode(t, "pvs", "--noheadings", "-o", "pv_name", "-S", "vg_name=flexlvm"))
	b.onNode(t, "vgremove", "-q", "flexlvm")
	b.onNode(t, "pvremove", "-q", device)
	guide.shown(t, "alias flexlvm="+driver)
	guide.root(t, "flexlvm vg create /dev/sdb", "/dev/sdb", device)
	guide.root(t, "flexlvm doctor")
}
