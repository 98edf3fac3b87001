//go:build cluster

package installer_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	node      = "node1"
	pluginDir = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm"
	driver    = pluginDir + "/flexlvm"
	disk      = "blank-1"           // the serial number of the node's disk
	next      = cluster.NextRelease // the version to upgrade to
)

type bed struct {
	*cluster.Cluster
	source  string
	tools   string // the folder of helm
	readme  *manual
	install *manual
	image   func() (string, error) // runs `make image` to its end
	next    func() (string, error) // the image of the release to upgrade to
}

// TestInstaller tests the life of an installation as README.md and docs/install.md describe it.
func TestInstaller(t *testing.T) {
	next := beside(t, func() (string, error) { return cluster.BuildImage(t.Context(), next) })
	image := beside(t, func() (string, error) { return makeImage(t.Context()) })
	b := start(t)
	b.next, b.image = next, image
	b.testNewUser(t)
	t.Run("runs with no more rights than it needs", b.testRights)
	t.Run("upgrade", b.testUpgrade)
	t.Run("is ready when its driver is in place", b.testReadiness)
	t.Run("puts the driver back", b.testDriverLost)
	t.Run("uninstall", b.testUninstall)
	t.Run("helm", b.testHelm)
	t.Run("every command of the README", b.readme.allRun)
	t.Run("every command of the guide", b.install.allRun)
}

// beside starts a build, while the test goes on, and returns a function that waits for its result.
func beside(t *testing.T, build func() (string, error)) func() (string, error) {
	t.Helper()
	wait := sync.OnceValues(build)
	ended := make(chan struct{})
	go func() { _, _ = wait(); close(ended) }()
	t.Cleanup(func() { <-ended })
	return wait
}

// makeImage runs `make image` in the checkout, on this machine, as the pages say, and returns its output.
func makeImage(ctx context.Context) (string, error) {
	source, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "make", "image")
	cmd.Dir = source
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// world returns a folder with the files that the documentation's commands name. The disk's name is
// filled into the example of a volume group, and the installer's readiness is probed more often, so that
// the test does not wait.
func (b *bed) world(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"installer", "examples", "charts"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(b.source, part))))
	}
	edit(t, filepath.Join(dir, "examples/volumegroup.yaml"), "byID: nvme-Samsung_SSD_980_*", "byID: serial-"+disk)
	edit(t, filepath.Join(dir, "installer/node/installer.yaml"), "periodSeconds: 20", "periodSeconds: 2")
	return dir
}

func edit(t *testing.T, file, before, after string) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(content), before), file)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(content), before, after, 1)), 0o644))
}

// testNewUser goes from the image to a pod, with a declared volume group.
func (b *bed) testNewUser(t *testing.T) {
	dir := b.world(t)
	b.readme, b.install = b.manual(t, readme, dir), b.manual(t, guide, dir)
	b.readme.shown(t, "make image") // which has run since start
	b.install.shown(t, "make image")
	out, err := b.image()
	require.NoError(t, err, out)
	image, err := os.Open(filepath.Join(b.source, "bin/image.tar"))
	require.NoError(t, err)
	defer image.Close()
	_, err = b.NodeInput(t.Context(), image, node, "sh", "-c", "cat >/root/image.tar")
	require.NoError(t, err)
	b.readme.root(t, "ctr -n k8s.io images import image.tar")
	b.install.shown(t, "ctr -n k8s.io images import image.tar")
	b.onNode(t, "rm", "/root/image.tar")

	b.readme.run(t, "kubectl apply -k installer/")
	b.install.run(t, "kubectl apply -k installer/")
	b.install.run(t, "kubectl rollout status -n flexlvm-system daemonset/flexlvm-installer")
	b.install.run(t, "kubectl rollout status -n flexlvm-system deployment/flexlvm-provisioner")
	b.install.run(t, "kubectl rollout status -n flexlvm-system daemonset/flexlvm-gc")
	shipped, err := cluster.ShippedRelease()
	require.NoError(t, err)
	require.Contains(t, b.onNode(t, driver, "version"), shipped)
	require.Equal(t, "flexlvm\n", b.onNode(t, "ls", "-A", pluginDir), "nothing else may be there")
	require.Contains(t, b.install.run(t, `kubectl get --raw "/api/v1/nodes/NODE/proxy/configz" | grep -o '"volumePluginDir":"[^"]*"'`, "NODE", node), filepath.Dir(pluginDir))

	b.readme.run(t, "kubectl label node NODE flexlvm.io/disks=local", "NODE", node)
	b.readme.run(t, "kubectl apply -f examples/volumegroup.yaml")
	b.install.shown(t, "kubectl label node NODE flexlvm.io/disks=local")
	b.install.shown(t, "kubectl apply -f examples/volumegroup.yaml")
	b.install.shown(t, "kubectl describe nodestorage NODE")
	await.Until(t, 9*time.Minute, func() string {
		says := b.readme.run(t, "kubectl describe nodestorage NODE", "NODE", node)
		return await.Missing(strings.Contains(says, "serial-"+disk) && strings.Contains(says, "Made"), "no volume group is made: %s", says)
	})
	require.Contains(t, b.install.run(t, "kubectl get nodestorages -o wide"), node)
	b.readme.shown(t, "kubectl get nodestorages")
	t.Logf("AppArmor on the node: %s", b.onNode(t, "sh", "-c", "cat /sys/module/apparmor/parameters/enabled 2>&1 || true"))

	b.readme.run(t, "kubectl apply -f examples/pod.yaml")
	b.install.run(t, "kubectl apply -f examples/pod.yaml")
	b.readme.run(t, "kubectl wait --for=condition=Ready pod/data-pod --timeout=3m")
	require.Regexp(t, `\s1073741824\s+0\s+1073741824\s+0%\s+/data`, b.readme.run(t, "kubectl exec data-pod -- df -B1 /data"), "as the README shows")
	b.install.run(t, "kubectl describe pvc NAME", "NAME", "data")
	b.install.run(t, "kubectl describe pod NAME", "NAME", "data-pod")
	b.install.run(t, "kubectl describe pv NAME", "NAME", b.volume(t))
	b.install.run(t, "kubectl logs -n flexlvm-system -l app.kubernetes.io/name=flexlvm-provisioner --prefix --tail=-1")
	b.install.run(t, "kubectl logs -n flexlvm-system -l app.kubernetes.io/name=flexlvm-gc --prefix --tail=-1")
	b.inPod(t, "echo kept >/data/kept && sync -f /data")
}

// volume returns the name of the example claim's PersistentVolume.
func (b *bed) volume(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
}

func start(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // a cold run builds everything
	defer cancel()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	c, err := cluster.Start(ctx, cluster.Config{Name: fmt.Sprintf("installer-%d", os.Getpid()), BlankDisks: 1, Log: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		require.NoError(t, c.Stop(ctx))
	})
	return &bed{Cluster: c, source: source, tools: cache}
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	out, err := b.Kubectl(ctx, args...)
	t.Logf("%5.1fs kubectl %s", time.Since(began).Seconds(), strings.Join(args, " "))
	if err != nil {
		state, _ := b.Kubectl(ctx, "describe", "pods", "-A")
		require.NoError(t, err, state)
	}
	return out
}

func (b *bed) onNode(t *testing.T, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := b.Node(ctx, node, command...)
	require.NoError(t, err)
	return out
}

func (b *bed) inPod(t *testing.T, line string) string {
	t.Helper()
	return b.kubectl(t, "exec", "data-pod", "--", "sh", "-c", line)
}

func (b *bed) rolledOut(t *testing.T) {
	t.Helper()
	b.kubectl(t, "rollout", "status", "-n", "flexlvm-system", "daemonset/flexlvm-installer", "--timeout=4m")
	b.kubectl(t, "rollout", "status", "-n", "flexlvm-system", "deployment/flexlvm-provisioner", "--timeout=4m")
	b.kubectl(t, "rollout", "status", "-n", "flexlvm-system", "daemonset/flexlvm-gc", "--timeout=4m")
}

// toNext prepares the documentation's folder for the release to upgrade to. Its installer checks the
// driver more often, so that the test does not wait.
func (b *bed) toNext(t *testing.T) {
	t.Helper()
	shipped, err := cluster.ShippedRelease()
	require.NoError(t, err)
	dir := b.world(t)
	edit(t, filepath.Join(dir, "installer/settings/kustomization.yaml"), "    newTag: "+shipped+"\n\n", "    newTag: "+next+"\n\n")
	edit(t, filepath.Join(dir, "installer/node/installer.yaml"), "[/installer, --plugin-dir=/plugins]", "[/installer, --plugin-dir=/plugins, --interval=2s]")
	b.install.dir = dir
}

// testRights checks the containers' actual privileges on the node.
func (b *bed) testRights(t *testing.T) {
	status := func(program string) string {
		return b.onNode(t, "sh", "-c", `for p in /proc/[0-9]*; do
			if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "^`+program+`"; then grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' $p/status; exit; fi
		done; echo not found; exit 1`)
	}
	provisioner := status("/provisioner")
	require.Contains(t, provisioner, "Uid:\t65532\t65532\t65532\t65532")
	require.Contains(t, provisioner, "CapEff:\t0000000000000000")
	require.Contains(t, provisioner, "NoNewPrivs:\t1")
	require.Contains(t, provisioner, "Seccomp:\t2")
	installer := status("/installer")
	require.Contains(t, installer, "Uid:\t0\t0\t0\t0")
	require.Contains(t, installer, "CapEff:\t0000000000000000")
	require.Contains(t, installer, "NoNewPrivs:\t1")
	require.Contains(t, installer, "Seccomp:\t2")
	// The daemon has all capabilities, and is in the namespaces of the host's programs.
	require.Contains(t, status("/gc"), strings.TrimSpace(b.onNode(t, "grep", "^CapEff:", "/proc/1/status")))
	require.Equal(t, "same\n", b.onNode(t, "sh", "-c", `for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "^/gc"; then
			for n in mnt ipc uts net pid; do [ "$(readlink $p/ns/$n)" = "$(readlink /proc/1/ns/$n)" ] || echo "another $n"; done
			echo same; exit
		fi
	done`))
}

// testUpgrade replaces everything while a pod uses its volume and others start. The driver is always
// one of the two releases, and no pod has to be created again.
func (b *bed) testUpgrade(t *testing.T) {
	shipped, err := cluster.ShippedRelease()
	require.NoError(t, err)
	image, err := b.next()
	require.NoError(t, err)
	require.NoError(t, b.LoadImage(t.Context(), image))
	b.onNode(t, "sh", "-c", `rm -f /run/stop; (
		n=0; bad=0
		until [ -e /run/stop ]; do
			"`+driver+`" version >/run/version.out 2>&1 && grep -qF -e "flexlvm `+shipped+` " -e "flexlvm `+next+` " /run/version.out || { bad=$((bad+1)); cat /run/version.out >>/run/bad; }
			ls -A "`+pluginDir+`" | grep -v -e '^flexlvm$' -e '^\.flexlvm\.tmp$' >>/run/bad
			n=$((n+1))
			sleep 0.1 # the upgrade has this processor, too
		done; echo "$n $bad" >/run/count ) >/dev/null 2>&1 &`)
	b.toNext(t)
	b.startPod(t, "before")
	b.install.run(t, "kubectl apply -k installer/")
	b.startPod(t, "during-1")
	b.kubectl(t, "rollout", "status", "-n", "flexlvm-system", "daemonset/flexlvm-installer", "--timeout=4m")
	b.startPod(t, "during-2")
	b.rolledOut(t)
	for _, name := range []string{"before", "during-1", "during-2"} {
		b.kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=4m")
		// A pod without a probe is Ready before its shell has written.
		require.Equal(t, name+"\n", b.kubectl(t, "exec", name, "--", "sh", "-c", "until [ -s /data/name ]; do sleep 0.2; done; cat /data/name"))
	}
	require.Equal(t, "data-pod 0\nbefore 0\nduring-1 0\nduring-2 0\n", b.kubectl(t, "get", "pods", "data-pod", "before", "during-1", "during-2",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}`))
	b.kubectl(t, "delete", "pod,pvc", "-l", "load=upgrade", "--timeout=4m")
	require.Contains(t, b.onNode(t, driver, "version"), next)
	b.onNode(t, "sh", "-c", "touch /run/stop; until [ -s /run/count ]; do sleep 0.1; done")
	require.Empty(t, b.onNode(t, "sh", "-c", "cat /run/bad"))
	var runs, bad int
	_, err = fmt.Sscan(b.onNode(t, "cat", "/run/count"), &runs, &bad)
	require.NoError(t, err)
	require.Zero(t, bad)
	require.Greater(t, runs, 20, "the driver was run too seldom to be sure")
	t.Logf("the driver ran %d times during the upgrade, and never failed", runs)
	require.Equal(t, "kept\n", b.inPod(t, "cat /data/kept"), "the pod did not notice")

	b.install.run(t, "kubectl -n flexlvm-system rollout restart daemonset,deployment")
	b.rolledOut(t)

	// A pod that starts afterwards is served by the new driver.
	b.kubectl(t, "delete", "pod", "data-pod", "--timeout=4m")
	b.kubectl(t, "apply", "-f", filepath.Join(b.source, "examples/pod.yaml"))
	b.kubectl(t, "wait", "--for=condition=Ready", "pod/data-pod", "--timeout=4m")
	require.Equal(t, "kept\n", b.inPod(t, "cat /data/kept"))
}

// startPod creates a pod like the example's, with its own claim, and does not wait for it. The pod
// writes its name to its volume.
func (b *bed) startPod(t *testing.T, name string) {
	t.Helper()
	manifest := strings.NewReplacer("NAME", name).Replace(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, labels: {load: upgrade}}
spec: {storageClassName: flexlvm, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {load: upgrade}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: writer
      image: busybox:1.36
      command: [sh, -ec, "echo NAME >/data/name; sync -f /data; ` + cluster.Sleep + `"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: NAME}}]
`)
	_, err := b.KubectlInput(t.Context(), strings.NewReader(manifest), "apply", "-f", "-")
	require.NoError(t, err)
}

// testReadiness: an installer's pod is not Ready while another driver is installed in place of its own.
func (b *bed) testReadiness(t *testing.T) {
	ready := func(want string) {
		b.kubectl(t, "wait", "-n", "flexlvm-system", "pod", "-l", "app.kubernetes.io/name=flexlvm-installer", "--for=condition=Ready="+want, "--timeout=3m")
	}
	ready("true")
	b.onNode(t, "sh", "-c", `printf '#!/bin/sh\necho not this one\n' >`+pluginDir+`/.foreign && chmod 755 `+pluginDir+`/.foreign && mv `+pluginDir+`/.foreign `+driver)
	ready("false")
	b.onNode(t, "rm", driver) // the installer restores its own now
	ready("true")
	require.Contains(t, b.onNode(t, driver, "version"), next)
}

// testDriverLost: somebody removes or damages the driver.
func (b *bed) testDriverLost(t *testing.T) {
	for _, damage := range []string{"rm " + driver, "truncate -s 1000 " + driver, "rm -r " + pluginDir} {
		b.onNode(t, "sh", "-c", damage)
		b.onNode(t, "timeout", "90", "sh", "-c", `until "`+driver+`" version 2>/dev/null | grep -q `+next+`; do sleep 0.2; done`)
	}
}
