//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// growLayouts are the classes of volumes whose growth is refused while a pod uses them. Beside that, a
// class may have a volume whose growth waits for space, or one whose growth was granted and that no pod
// uses. Kubelet cannot distinguish a waiting growth from a refused one.
var growLayouts = []struct {
	name, parameters string
	waiting          string // the size it waits for, which its pool could hold without the other volumes
	granted          bool
}{
	{name: "linear", parameters: "volumeGroup: " + growthGroup},
	{name: "striped", parameters: `volumeGroup: ` + growthGroup + `, layout: striped, stripes: "2"`, waiting: "9Gi"},
	{name: "raid1", parameters: "volumeGroup: " + growthGroup + ", layout: raid1", granted: true},
	{name: "thin", parameters: "volumeGroup: " + thinGroup + ", thinPool: thinpool, layout: thin", waiting: "3500Mi", granted: true},
}

// growths are the volumes of growLayouts, on one node.
type growths struct {
	*tenant
	sums map[string]string
}

const growthNode = "node2"

// newGrowths creates the volumes and requests the growths.
func newGrowths(t *testing.T) *growths {
	t.Helper()
	n := newTenant(t, "growths")
	g := &growths{n, map[string]string{}}
	var all strings.Builder
	for _, l := range growLayouts {
		fmt.Fprintf(&all, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: grow-%s}
provisioner: flexlvm.io
volumeBindingMode: Immediate
allowVolumeExpansion: true
parameters: {%s}
allowedTopologies: [{matchLabelExpressions: [{key: kubernetes.io/hostname, values: [%s]}]}]
---`, l.name, l.parameters, growthNode)
		for _, name := range claimsOf(l.waiting != "", l.granted) {
			all.WriteString(claimOf("grow-"+l.name, l.name+"-"+name, "64Mi") + "---")
		}
	}
	require.NoError(t, n.apply(all.String()))
	t.Cleanup(func() {
		for _, l := range growLayouts {
			out, err := shared.Kubectl(context.WithoutCancel(n.ctx), "delete", "storageclass", "grow-"+l.name)
			require.NoError(t, err, out)
		}
	})
	g.pods(false)
	g.each(func(layout, name string) {
		g.sums[layout+name] = n.exec(layout, fmt.Sprintf("dd if=/dev/urandom of=/%[1]s/random bs=1M count=5 2>/dev/null; md5sum /%[1]s/random", name))
	})
	n.kubectl("wait", "pvc", "--all", "--for=jsonpath={.status.phase}=Bound", patiently)
	for _, l := range growLayouts {
		n.ask(l.name+"-refused", "400Ti")
		if l.waiting != "" {
			n.ask(l.name+"-waiting", l.waiting)
		}
		if l.granted {
			n.ask(l.name+"-granted", "400Mi")
		}
	}
	g.asAsked(t)
	g.granted(t)
	return g
}

// each calls do for each volume of each layout whose growth was not granted.
func (g *growths) each(do func(layout, name string)) {
	for _, l := range growLayouts {
		for _, name := range claimsOf(l.waiting != "", false) {
			do(l.name, name)
		}
	}
}

// claimsOf returns the names of a layout's claims.
func claimsOf(waiting, granted bool) []string {
	out := []string{"refused"}
	if waiting {
		out = append(out, "waiting")
	}
	if granted {
		out = append(out, "granted")
	}
	return out
}

// pods creates a pod for each layout, with the claims whose growth was not granted or with all, and
// waits until they run.
func (g *growths) pods(granted bool) {
	g.t.Helper()
	var all []string
	for _, l := range growLayouts {
		var mounts, volumes strings.Builder
		for _, claim := range claimsOf(l.waiting != "", granted && l.granted) {
			fmt.Fprintf(&mounts, "{name: %[1]s, mountPath: /%[1]s},", claim)
			fmt.Fprintf(&volumes, "{name: %s, persistentVolumeClaim: {claimName: %s-%[1]s}},", claim, l.name)
		}
		all = append(all, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: %s, command: [sh, -c, %q], volumeMounts: [%s]}]
  volumes: [%s]
`, l.name, cluster.BusyboxImage, cluster.Sleep, mounts.String(), volumes.String()))
	}
	g.run(all...)
}

// asAsked waits until each claim whose growth was not granted says so. Kubernetes retries now and then,
// and removes the message meanwhile.
func (g *growths) asAsked(t *testing.T) {
	t.Helper()
	for _, l := range growLayouts {
		g.says(t, l.name+"-refused", "ControllerResizeInfeasible", "cannot grow from 64Mi to 400Ti")
		if l.waiting != "" {
			g.says(t, l.name+"-waiting", "ControllerResizeInfeasible", "waits to grow from 64Mi to "+l.waiting)
		}
	}
}

// granted waits until each growth that was granted waits for the volume's first pod.
func (g *growths) granted(t *testing.T) {
	t.Helper()
	for _, l := range growLayouts {
		if l.granted {
			g.says(t, l.name+"-granted", "NodeResizePending", "")
		}
	}
}

// says waits until a claim of 64Mi reports a state of its growth.
func (g *growths) says(t *testing.T, claim, state, words string) {
	t.Helper()
	await.Until(t, patience, func() string {
		is := g.growth(claim)
		return await.Missing(strings.HasPrefix(is, state+" 64Mi ") && strings.Contains(is, words), "claim %s says %q", claim, is)
	})
}

// started waits until all pods run that ran before their node went down.
func (g *growths) started(t *testing.T) {
	t.Helper()
	for _, l := range growLayouts {
		require.Eventually(t, func() bool {
			_, err := shared.Exec(g.ctx, g.namespace, l.name, "true")
			return err == nil
		}, patience, time.Second, l.name)
	}
	g.unchanged(t, 64<<20)
}

// unchanged checks the volumes' size and that their data is intact.
func (g *growths) unchanged(t *testing.T, size int64) {
	t.Helper()
	g.each(func(layout, name string) {
		out := g.exec(layout, fmt.Sprintf("md5sum /%[1]s/random; stat -f -c '%%S %%b' /%[1]s", name))
		sum, blocks, _ := strings.Cut(out, "\n")
		require.Equal(t, strings.TrimSpace(g.sums[layout+name]), sum)
		require.Equal(t, size, bytesIn(t, blocks), "%s of %s", name, layout)
	})
}

// size returns a volume's size as a pod sees it.
func (g *growths) size(pod, name string) int64 {
	g.t.Helper()
	return bytesIn(g.t, g.exec(pod, "stat -f -c '%S %b' /"+name))
}

// bytesIn returns the size that stat reports in blocks.
func bytesIn(t *testing.T, text string) int64 {
	t.Helper()
	var block, blocks int64
	_, err := fmt.Sscan(text, &block, &blocks)
	require.NoError(t, err, text)
	return block * blocks
}

// madeAgain does what a drain does: all pods are deleted and created again, and their volumes are
// mounted again. A granted growth happens with the volume's first pod.
func (g *growths) madeAgain(t *testing.T) {
	t.Helper()
	g.kubectl("delete", "pods", "--all")
	g.pods(true)
	g.unchanged(t, 64<<20)
	for _, l := range growLayouts {
		if !l.granted {
			continue
		}
		require.EqualValues(t, 400<<20, g.size(l.name, "granted"), l.name)
		g.kubectl("wait", "pvc/"+l.name+"-granted", "--for=jsonpath={.status.capacity.storage}=400Mi", patiently)
	}
}

// provisionerKilled kills the provisioner on its node.
func (g *growths) provisionerKilled(t *testing.T) {
	t.Helper()
	at := kubectl(g.ctx, t, "-n", "flexlvm-system", "get", "pods", "-l", "app.kubernetes.io/name=flexlvm-provisioner", "-o", "jsonpath={.items[0].spec.nodeName}")
	before := ""
	await.Until(t, patience, func() string { // it may just be restarting with the node that lost its power
		var err error
		before, err = shared.Node(g.ctx, at, "pidof", "provisioner")
		return await.Missing(err == nil, "no provisioner runs on %s: %v", at, err)
	})
	onNode(g.ctx, t, at, "kill -9 $(pidof provisioner)")
	await.Until(t, patience, func() string {
		now, err := shared.Node(g.ctx, at, "pidof", "provisioner")
		return await.Missing(err == nil && now != before, "the provisioner is not back: %v", err)
	})
}

// lowered requests a size that fits, while the volumes are in use.
func (g *growths) lowered(t *testing.T) {
	t.Helper()
	g.each(func(layout, name string) { g.ask(layout+"-"+name, "350Mi") })
	g.each(func(layout, name string) {
		g.kubectl("wait", "pvc/"+layout+"-"+name, "--for=jsonpath={.status.capacity.storage}=350Mi", patiently)
	})
	g.unchanged(t, 350<<20)
	g.kubectl("delete", "pods", "--all")
}
