//go:build cluster

package installer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	node   = "node1"
	dir    = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm"
	driver = dir + "/flexlvm"
	next   = "v99.0.0-next" // what is upgraded to
)

type bed struct {
	*cluster.Cluster
	source string
}

// TestInstaller is the life of an installation.
func TestInstaller(t *testing.T) {
	b := start(t)
	shipped, err := cluster.ShippedRelease()
	require.NoError(t, err)
	installer := filepath.Join(b.source, "installer")

	b.kubectl(t, "apply", "-k", installer)
	b.rolledOut(t)
	require.Contains(t, b.onNode(t, driver, "version"), shipped)
	require.Equal(t, "flexlvm\n", b.onNode(t, "ls", "-A", dir), "nothing else may be there")
	b.onNode(t, driver, "vg", "create", "/dev/vdb")
	t.Logf("AppArmor on the node: %s", b.onNode(t, "sh", "-c", "cat /sys/module/apparmor/parameters/enabled 2>&1 || true"))
	b.kubectl(t, "apply", "-f", filepath.Join(b.source, "examples/pod.yaml"))
	b.kubectl(t, "wait", "--for=condition=Ready", "pod/data-pod", "--timeout=4m")
	b.inPod(t, "echo kept >/data/kept && sync")

	t.Run("runs with no more rights than it needs", b.testRights)
	t.Run("upgrade", func(t *testing.T) { b.testUpgrade(t, installer) })
	t.Run("is ready when its driver is in place", b.testReadiness)
	t.Run("puts the driver back", b.testDriverLost)
	t.Run("uninstall", func(t *testing.T) { b.testUninstall(t, b.next(t, installer)) })
	t.Run("helm", b.testHelm)
}

func start(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // cold, all is built
	defer cancel()
	source, err := vm.SourceDir()
	require.NoError(t, err)
	release, err := cluster.ShippedRelease()
	require.NoError(t, err)
	image, err := cluster.BuildImage(ctx, release)
	require.NoError(t, err)
	c, err := cluster.Start(ctx, cluster.Config{Name: fmt.Sprintf("installer-%d", os.Getpid()), Images: []string{image}, Log: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		require.NoError(t, c.Stop(ctx))
	})
	return &bed{Cluster: c, source: source}
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := b.Kubectl(ctx, args...)
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

// next is a copy of the manifests of the release that is upgraded to. Its
// installer looks after the driver more often, so that nobody has to wait.
func (b *bed) next(t *testing.T, installer string) string {
	t.Helper()
	shipped, err := cluster.ShippedRelease()
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "installer")
	require.NoError(t, os.CopyFS(to, os.DirFS(installer)))
	settings := filepath.Join(to, "settings/kustomization.yaml")
	content, err := os.ReadFile(settings)
	require.NoError(t, err)
	changed := strings.Replace(string(content), "    newTag: "+shipped+"\n\n", "    newTag: "+next+"\n\n", 1)
	require.NotEqual(t, string(content), changed)
	require.NoError(t, os.WriteFile(settings, []byte(changed), 0o644))
	daemon := filepath.Join(to, "node/installer.yaml")
	content, err = os.ReadFile(daemon)
	require.NoError(t, err)
	changed = strings.Replace(string(content), "--wait]", "--wait, --interval=2s]", 1)
	require.NotEqual(t, string(content), changed)
	require.NoError(t, os.WriteFile(daemon, []byte(changed), 0o644))
	return to
}

// testRights looks at what the containers really are on the node.
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
	installer := status("/flexlvm install")
	require.Contains(t, installer, "Uid:\t0\t0\t0\t0")
	require.Contains(t, installer, "CapEff:\t0000000000000000")
	require.Contains(t, installer, "NoNewPrivs:\t1")
	require.Contains(t, installer, "Seccomp:\t2")
	// The daemon may do all, and is where the host's programs are.
	require.Contains(t, status("/gc"), strings.TrimSpace(b.onNode(t, "grep", "^CapEff:", "/proc/1/status")))
	require.Equal(t, "same\n", b.onNode(t, "sh", "-c", `for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "^/gc"; then
			for n in mnt ipc uts net pid; do [ "$(readlink $p/ns/$n)" = "$(readlink /proc/1/ns/$n)" ] || echo "another $n"; done
			echo same; exit
		fi
	done`))
}

// testUpgrade replaces the driver under a pod that uses it. At no moment is it
// anything but one of the two releases.
func (b *bed) testUpgrade(t *testing.T, installer string) {
	image, err := cluster.BuildImage(t.Context(), next)
	require.NoError(t, err)
	require.NoError(t, b.LoadImage(t.Context(), image))
	b.onNode(t, "sh", "-c", `rm -f /run/stop; (
		n=0; bad=0
		until [ -e /run/stop ]; do
			"`+driver+`" version >/run/version.out 2>&1 || { bad=$((bad+1)); cat /run/version.out >>/run/bad; }
			ls -A "`+dir+`" | grep -v -e '^flexlvm$' -e '^\.flexlvm\.tmp$' >>/run/bad
			n=$((n+1))
		done; echo "$n $bad" >/run/count ) >/dev/null 2>&1 &`)
	b.kubectl(t, "apply", "-k", b.next(t, installer))
	b.rolledOut(t)
	require.Contains(t, b.onNode(t, driver, "version"), next)
	b.onNode(t, "sh", "-c", "touch /run/stop; until [ -e /run/count ]; do sleep 0.1; done")
	require.Empty(t, b.onNode(t, "sh", "-c", "cat /run/bad"))
	var runs, bad int
	_, err = fmt.Sscan(b.onNode(t, "cat", "/run/count"), &runs, &bad)
	require.NoError(t, err)
	require.Zero(t, bad)
	t.Logf("the driver ran %d times during the upgrade, and never failed", runs)
	require.Equal(t, "kept\n", b.inPod(t, "cat /data/kept"), "the pod did not notice")

	// A pod that comes after it is served by the new driver.
	b.kubectl(t, "delete", "pod", "data-pod", "--timeout=2m")
	b.kubectl(t, "apply", "-f", filepath.Join(b.source, "examples/pod.yaml"))
	b.kubectl(t, "wait", "--for=condition=Ready", "pod/data-pod", "--timeout=4m")
	require.Equal(t, "kept\n", b.inPod(t, "cat /data/kept"))
}

// testReadiness: a pod is not Ready while another driver than its own is in place.
func (b *bed) testReadiness(t *testing.T) {
	ready := func(want string) {
		b.kubectl(t, "wait", "-n", "flexlvm-system", "pod", "-l", "app.kubernetes.io/name=flexlvm-installer", "--for=condition=Ready="+want, "--timeout=3m")
	}
	ready("true")
	b.onNode(t, "sh", "-c", `printf '#!/bin/sh\necho not this one\n' >`+dir+`/.foreign && chmod 755 `+dir+`/.foreign && mv `+dir+`/.foreign `+driver)
	ready("false")
	b.onNode(t, "rm", driver) // now it is put back
	ready("true")
	require.Contains(t, b.onNode(t, driver, "version"), next)
}

// testDriverLost: somebody removes or damages the driver.
func (b *bed) testDriverLost(t *testing.T) {
	for _, damage := range []string{"rm " + driver, "truncate -s 1000 " + driver, "rm -r " + dir} {
		b.onNode(t, "sh", "-c", damage)
		b.onNode(t, "timeout", "90", "sh", "-c", `until "`+driver+`" version 2>/dev/null | grep -q `+next+`; do sleep 1; done`)
	}
}

// testUninstall: the driver stays while a kubelet needs it, and goes then.
func (b *bed) testUninstall(t *testing.T, installer string) {
	b.kubectl(t, "apply", "-k", filepath.Join(installer, "uninstall"))
	var log string
	require.Eventually(t, func() bool {
		out, err := b.Kubectl(t.Context(), "logs", "-n", "flexlvm-system", "-l", "app.kubernetes.io/name=flexlvm-installer", "-c", "uninstall")
		log = out
		return err == nil && strings.Contains(out, "volumes are mounted")
	}, 3*time.Minute, time.Second, "the log: %s", log)
	t.Log(strings.TrimSpace(log))
	require.Contains(t, log, "/volumes/flexlvm.io~flexlvm/pvc-")
	require.Contains(t, b.onNode(t, driver, "version"), next, "still there")

	b.kubectl(t, "delete", "pod", "data-pod", "--timeout=2m") // needs the driver
	b.kubectl(t, "rollout", "status", "-n", "flexlvm-system", "daemonset/flexlvm-installer", "--timeout=5m")
	require.Equal(t, "gone\n", b.onNode(t, "sh", "-c", "[ -e "+dir+" ] || echo gone"))

	// Volumes outlive it.
	b.kubectl(t, "delete", "-k", filepath.Join(installer, "gc"), "--timeout=3m")
	b.kubectl(t, "delete", "-k", installer, "--ignore-not-found", "--timeout=3m")
	require.Empty(t, b.kubectl(t, "get", "-o", "name", "-l", "app.kubernetes.io/part-of=flexlvm", "-A",
		"deployments,daemonsets,pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,storageclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces"))
	require.Contains(t, b.kubectl(t, "get", "pv", "-o", "jsonpath={.items[*].status.phase}"), "Bound")
	require.Contains(t, b.onNode(t, "lvs", "--noheadings", "-o", "lv_name", "flexlvm"), "pvc-")
}
