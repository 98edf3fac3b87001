//go:build cluster

package cluster_test

// IO limits of volumes of the CSI driver, which change with their claims' VolumeAttributesClass.

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

var installSidecars sync.Once

// sidecarTenant returns a tenant with CSI's resizer and snapshotter beside the provisioner, enabled by
// lines of installer/kustomization.yaml as docs/io-limits.md and docs/snapshots.md say.
func sidecarTenant(t *testing.T, namespace string) *tenant {
	t.Helper()
	n := newCSITenant(t, namespace)
	installSidecars.Do(func() {
		dir := filepath.Join(t.TempDir(), "installer")
		require.NoError(t, os.CopyFS(dir, os.DirFS(shipped(t, "installer"))))
		file := filepath.Join(dir, "kustomization.yaml")
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range []string{"resizer", "snapshotter"} {
			image, err := cluster.BuildSidecarImage(n.ctx, name, os.Stderr)
			require.NoError(t, err)
			require.NoError(t, shared.LoadImage(n.ctx, image))
			line := "  # - csi/" + name + "\n"
			require.Contains(t, string(content), line)
			content = []byte(strings.Replace(string(content), line, "  - csi/"+name+"\n", 1))
		}
		crds, err := cluster.SnapshotCRDs(n.ctx) // the snapshotter does not start without them
		require.NoError(t, err)
		for _, file := range crds {
			kubectl(n.ctx, t, "apply", "-f", file)
		}
		require.NoError(t, os.WriteFile(file, content, 0o600))
		kubectl(n.ctx, t, "apply", "-f", installer(n.ctx, t, dir))
		kubectl(n.ctx, t, "-n", "flexlvm-system", "rollout", "status", "deployment/flexlvm-provisioner", patiently)
	})
	return n
}

// sidecarsStay checks that no sidecar restarts repeatedly beside a provisioner that stays up, even one
// that waits for the lease. A few restarts are tolerated, because a sidecar ends if the API server is
// unreachable for long, as on a starved machine.
func (n *tenant) sidecarsStay() {
	n.t.Helper()
	pods := kubectl(n.ctx, n.t, "-n", "flexlvm-system", "get", "pods", "-l", "app.kubernetes.io/name=flexlvm-provisioner", "-o",
		`jsonpath={range .items[*]}{range .status.containerStatuses[*]}{.name} {.restartCount} {end}{"\n"}{end}`)
	require.Len(n.t, strings.Split(strings.TrimSpace(pods), "\n"), 2, pods)
	for pod := range strings.Lines(pods) {
		restarts := map[string]int64{}
		for pair := range slices.Chunk(strings.Fields(pod), 2) {
			restarts[pair[0]] = number(n.t, pair[1])
		}
		for _, sidecar := range []string{"resizer", "snapshotter"} {
			require.Contains(n.t, restarts, sidecar)
			require.LessOrEqual(n.t, restarts[sidecar], restarts["provisioner"]+3, "%s ends again and again: %s", sidecar, pod)
		}
	}
}

// The IO limits of a volume in use change with the VolumeAttributesClass of its claim.
func TestCSIVolumeAttributesClass(t *testing.T) {
	slots.Parallel(t, 53)
	n := sidecarTenant(t, "csi-limits")
	n.applyExample("volumeattributesclass.yaml")
	// Created long before a claim asks for it, because the resizer gives up on a claim whose class it
	// has not yet seen.
	require.NoError(t, n.apply(`
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: flexlvm-wrong}
driverName: flexlvm.io
parameters: {writeBps: fast}
`))
	n.run(claimOf("flexlvm-csi", "data", "200Mi", "volumeAttributesClassName: flexlvm-slow"), pod{name: "main", claim: "data", node: "node1"}.manifest())
	n.limitsAre("main", "data", "rbps=20971520 wbps=10485760 riops=max wiops=max")
	require.Equal(t, "flexlvm-slow", n.kubectl("get", "pvc", "data", "-o", "jsonpath={.status.currentVolumeAttributesClassName}"))

	asked := time.Now()
	n.kubectl("patch", "pvc", "data", "-p", `{"spec":{"volumeAttributesClassName":"flexlvm-fast"}}`)
	n.limitsAre("main", "data", "rbps=524288000 wbps=209715200 riops=max wiops=20000")
	t.Logf("another class was in force %.1f s after it was asked for", time.Since(asked).Seconds())
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.currentVolumeAttributesClassName}=flexlvm-fast", patiently)

	// An event of the claim names the wrong parameter, and the limits in force stay.
	n.kubectl("patch", "pvc", "data", "-p", `{"spec":{"volumeAttributesClassName":"flexlvm-wrong"}}`)
	n.told("data", "VolumeModifyFailed", `writeBps "fast": is not a rate; give bytes per second`)
	n.limitsAre("main", "data", "rbps=524288000 wbps=209715200 riops=max wiops=20000")
	n.kubectl("patch", "pvc", "data", "-p", `{"spec":{"volumeAttributesClassName":"flexlvm-unlimited"}}`)
	n.limitsAre("main", "data", "")
	require.Equal(t, "0", n.kubectl("get", "pod", "main", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"))

	// With the resizer installed, growth is still bounded.
	volume := n.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	n.ask("data", "900Gi")
	await.Until(t, patience, func() string {
		says := n.growth("data")
		return await.Missing(strings.HasPrefix(says, "ControllerResizeInfeasible "), "the claim says %q", says)
	})
	require.Equal(t, "200Mi", n.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.capacity.storage}"))
	n.ask("data", "300Mi")
	n.kubectl("wait", "pvc/data", "--for=jsonpath={.status.capacity.storage}=300Mi", patiently)
	for _, node := range []string{"node1", "node2"} {
		t.Log(node, onNode(n.ctx, t, node, `for p in $(pidof csi-resizer); do echo "csi-resizer: $(grep VmRSS /proc/$p/status)"; done`))
	}
}

// limitsAre waits until a pod on node1 has these limits on a claim's volume, as the kernel reports
// them; "" means none.
func (n *tenant) limitsAre(pod, claim, want string) {
	n.t.Helper()
	uid := n.kubectl("get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
	volume := n.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	look := fmt.Sprintf(`device=$(mountpoint -d /var/lib/kubelet/pods/%[1]s/volumes/kubernetes.io~csi/%[2]s/mount)
		sed -n "s/^$device //p" "$(find /sys/fs/cgroup/kubepods -maxdepth 2 -name pod%[1]s)/io.max"`, uid, volume)
	await.Until(n.t, patience, func() string {
		is := strings.TrimSpace(onNode(n.ctx, n.t, "node1", look))
		return await.Missing(is == want, "io.max of %s for %s is %q and should be %q", pod, claim, is, want)
	})
}
