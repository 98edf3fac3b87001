//go:build cluster

package installer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// testUninstall: the driver stays as long as kubelet needs it, and is removed then.
func (b *bed) testUninstall(t *testing.T) {
	b.toNext(t)
	declared := b.declare(t)
	require.Contains(t, b.install.run(t, "kubectl get pv -o custom-columns=VOLUME:.metadata.name,FLEXVOLUME:.spec.flexVolume.driver,CSI:.spec.csi.driver,NFS:.spec.nfs.path,LOCAL:.spec.local.path,NAMESPACE:.spec.claimRef.namespace,CLAIM:.spec.claimRef.name,STATUS:.status.phase"), b.volume(t))
	listed := b.install.run(t, "kubectl get volumemanagers.flexlvm.io,localvolumes.flexlvm.io -A")
	require.Contains(t, listed, "volumemanager.flexlvm.io/kept")
	require.Contains(t, listed, "localvolume.flexlvm.io/kept")
	b.testNoSnapshots(t)
	b.install.run(t, `kubectl patch -n flexlvm-system daemonset/flexlvm-gc --type=json -p '[
{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--min-age=0s"},
{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--max-age=1s"}]'`)
	b.rolledOut(t)
	await.Until(t, 9*time.Minute, func() string {
		left := strings.Fields(b.onNode(t, "lvs", "--noheadings", "-o", "lv_name", "flexlvm"))
		return await.Missing(len(left) == 1, "of the claims that were deleted volumes are left: %v", left)
	})
	b.install.run(t, "kubectl apply -k installer/uninstall/")
	b.install.shown(t, "kubectl logs -n flexlvm-system -l app.kubernetes.io/name=flexlvm-installer -c uninstall")
	await.Until(t, 9*time.Minute, func() string {
		// The container restarts as long as a volume is mounted, and has no log yet right after a
		// restart.
		log, err := b.Kubectl(t.Context(), "logs", "-n", "flexlvm-system", "-l", "app.kubernetes.io/name=flexlvm-installer", "-c", "uninstall")
		if err != nil || !strings.Contains(log, "volumes are mounted") {
			return fmt.Sprintf("it does not say why it waits: %v: %s", err, log)
		}
		t.Log(strings.TrimSpace(log))
		require.Contains(t, log, "/volumes/flexlvm.io~flexlvm/pvc-")
		return ""
	})
	require.Contains(t, b.onNode(t, driver, "version"), next, "still there")

	b.kubectl(t, "delete", "pod", "data-pod", "--timeout=4m") // its unmount needs the driver
	b.install.run(t, "kubectl rollout status -n flexlvm-system daemonset/flexlvm-installer")
	b.driverIsGone(t)

	b.testRemoval(t, declared)
}

// testNoSnapshots: without the snapshots' CustomResourceDefinitions, kubectl's error is the one that
// the guide quotes.
func (b *bed) testNoSnapshots(t *testing.T) {
	b.install.shown(t, "kubectl get volumesnapshots -A")
	b.install.shown(t, "kubectl get volumegroupsnapshots -A")
	for _, kind := range []string{"volumesnapshots", "volumegroupsnapshots"} {
		out, err := b.KubectlCommand(t.Context(), "get", kind, "-A").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "the server doesn't have a resource type")
	}
}

func (b *bed) driverIsGone(t *testing.T) {
	t.Helper()
	require.Equal(t, "gone\n", b.onNode(t, "sh", "-c", "[ -e "+pluginDir+" ] || echo gone"))
}

// testRemoval removes the rest. Volumes survive, and so do the users' objects, unchanged, until their
// CustomResourceDefinitions are deleted.
func (b *bed) testRemoval(t *testing.T, declared string) {
	b.install.run(t, "kubectl delete validatingadmissionpolicy,validatingadmissionpolicybinding growth.flexlvm.io provisioner-claim-status.flexlvm.io")
	b.install.run(t, "kubectl delete -k installer/csi/ --ignore-not-found")
	b.install.run(t, "kubectl delete -k installer/nfs/ --ignore-not-found")
	b.install.run(t, "kubectl delete -k installer/gc/")
	b.install.run(t, "kubectl delete -k installer/ -l 'app.kubernetes.io/component!=definitions' --ignore-not-found")
	require.Empty(t, b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "-A",
		"deployments,daemonsets,pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,storageclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces"))
	require.Equal(t, declared, b.declared(t))
	require.Contains(t, b.kubectl(t, "get", "pv", "-o", "jsonpath={.items[*].status.phase}"), "Bound")
	require.Contains(t, b.onNode(t, "lvs", "--noheadings", "-o", "lv_name", "flexlvm"), "pvc-")
	b.testScaleDown(t)

	// No provisioner runs that would remove the finalizer.
	b.kubectl(t, "patch", "volumemanager", "kept", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	b.kubectl(t, "delete", "volumemanager/kept", "localvolume/kept", "--timeout=1m")
	require.Contains(t, b.install.run(t, "kubectl get volumemanagers.flexlvm.io,localvolumes.flexlvm.io -A"), "No resources found")
	b.install.run(t, "kubectl delete customresourcedefinitions -l app.kubernetes.io/part-of=flexlvm")
	require.Empty(t, b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "customresourcedefinitions"))
}

// testScaleDown: the listed node is the one with the Bound volume, and the cluster autoscaler may
// remove it afterwards.
func (b *bed) testScaleDown(t *testing.T) {
	require.Equal(t, node, b.install.run(t, `kubectl get nodes -o jsonpath='{.items[?(@.metadata.annotations.flexlvm\.io/scale-down-disabled=="true")].metadata.name}'`))
	b.install.run(t, "kubectl annotate node NODE cluster-autoscaler.kubernetes.io/scale-down-disabled- flexlvm.io/scale-down-disabled-", "NODE", node)
	require.NotContains(t, b.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.annotations}"), "scale-down-disabled")
}

// declare creates a VolumeManager and a LocalVolume for which no volume is created, and returns the
// result of declared once the provisioner has added the VolumeManager's finalizer.
func (b *bed) declare(t *testing.T) (declared string) {
	t.Helper()
	_, err := b.KubectlInput(t.Context(), strings.NewReader(`
apiVersion: flexlvm.io/v1
kind: VolumeManager
metadata: {name: kept}
spec:
  state: Completed
  volumes:
    - {id: images, replicas: 1, sourceType: S3, accessMode: ReadWriteOnce, capacity: 64Mi, labels: {dataset: images},
       options: {awsCredentialsSecretName: s3-credentials, sourceURL: "s3://bucket/images/"}}
---
apiVersion: flexlvm.io/v1
kind: LocalVolume
metadata: {name: kept}
spec: {nodeName: nowhere, storageClassName: flexlvm, size: 64Mi}
`), "apply", "-f", "-")
	require.NoError(t, err)
	await.Until(t, time.Minute, func() string {
		declared = b.declared(t)
		return await.Missing(strings.Contains(declared, "flexlvm.io/dataset"), "the VolumeManager has no finalizer: %s", declared)
	})
	return declared
}

// declared returns the existing VolumeManagers and LocalVolumes, and whether they are being deleted.
func (b *bed) declared(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "get", "volumemanagers.flexlvm.io,localvolumes.flexlvm.io", "-A", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.uid} {.metadata.generation} {.metadata.finalizers} deleted:{.metadata.deletionTimestamp}{"\n"}{end}`)
}
