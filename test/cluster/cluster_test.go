//go:build cluster

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

// podOn returns a pod that prints its node and then sleeps.
func podOn(node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: on-%[1]s
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %[2]s
    command: [sh, -c, 'echo "this is $NODE"; exec sleep 86400']
    env:
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
`, node, cluster.BusyboxImage)
}

func TestPodsRunOnEveryNodeAndReachEachOther(t *testing.T) {
	ctx := deadline(t, patience)
	nodes := strings.Fields(kubectl(ctx, t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	require.Equal(t, []string{"node1", "node2"}, nodes)

	for _, node := range nodes {
		_, err := shared.KubectlInput(ctx, strings.NewReader(podOn(node)), "apply", "-f", "-")
		require.NoError(t, err)
		t.Cleanup(func() { kubectl(context.WithoutCancel(ctx), t, "delete", "pod", "on-"+node, "--wait=false") })
	}
	var addresses []string
	for _, node := range nodes {
		kubectl(ctx, t, "wait", "--for=condition=Ready", "pod/on-"+node, patiently)
		await.Until(t, time.Minute, func() string { // the pod is Ready before its shell has run
			said := kubectl(ctx, t, "logs", "on-"+node)
			return await.Missing(said == "this is "+node+"\n", "the pod on %s says %q", node, said)
		})
		addresses = append(addresses, kubectl(ctx, t, "get", "pod", "on-"+node, "-o", "jsonpath={.status.podIP}"))
	}
	for i, node := range nodes {
		inPod := func(command string) string { return kubectl(ctx, t, "exec", "on-"+node, "--", "sh", "-c", command) }
		require.Contains(t, inPod("for i in $(seq 30); do echo GET / HTTP/1.0 | nc -w 20 10.96.0.1 443 | grep 'HTTPS server' && break; done"), "HTTPS server", "the API server's service address")
		require.Contains(t, inPod("for i in $(seq 30); do ping -c 1 -w 10 "+addresses[1-i]+" && break; done"), "1 packets received", "a pod on another node")
		require.Equal(t, "from "+node+"\n", inPod("cat >/tmp/x <<E\nfrom $NODE\nE\ncat /tmp/x"))
	}
	requireExec(ctx, t, "on-"+nodes[0])
}

// requireExec checks that Exec returns what a command prints, and the reason for a failure, also if the command did not
// start.
func requireExec(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	out, err := shared.Exec(ctx, "default", pod, "sh", "-c", "printf %s \"$1\"", "sh", "a b&c")
	require.NoError(t, err)
	require.Equal(t, "a b&c", out)
	out, err = shared.Exec(ctx, "default", pod, "sh", "-c", "echo before; echo reason >&2; exit 3")
	require.ErrorContains(t, err, "exit code 3: reason")
	require.Equal(t, "before\n", out)
	_, err = shared.Exec(ctx, "default", "no-such-pod", "true")
	require.ErrorContains(t, err, `404 Not Found: {"kind":"Status"`)
	_, err = shared.Exec(ctx, "default", pod, "/no/such/program")
	require.ErrorContains(t, err, "/no/such/program")
	soon, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = shared.Exec(soon, "default", pod, "sleep", "60")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestServiceAccountsAreSubjectToRBAC(t *testing.T) {
	ctx := deadline(t, time.Minute)
	out, err := shared.Kubectl(ctx, "auth", "can-i", "delete", "nodes", "--as=system:serviceaccount:default:default")
	require.Error(t, err)
	require.Equal(t, "no\n", out)
}

func TestNothingIsLeftBehind(t *testing.T) {
	slots.Parallel(t, 0) // its clusters end before their nodes are Ready
	ctx := deadline(t, 15*time.Minute)
	ctl := filepath.Join(shared.Dir(), "ctl")
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	name := fmt.Sprintf("left-%d", os.Getpid())
	dir := filepath.Join(cache, "run", "cluster-"+name)

	t.Run("when the starter is killed", func(t *testing.T) {
		up := startHalf(ctx, t, ctl, name)
		require.NotEmpty(t, processesWith(t, dir))
		require.NoError(t, up.Process.Kill())
		_ = up.Wait() // it was killed
		require.Eventually(t, func() bool {
			_, err := os.Stat(dir)
			return os.IsNotExist(err) && len(processesWith(t, dir)) == 0
		}, 3*time.Minute, 100*time.Millisecond)
	})

	t.Run("when the supervisor is killed", func(t *testing.T) {
		up := startHalf(ctx, t, ctl, name)
		content, err := os.ReadFile(filepath.Join(dir, "pid"))
		require.NoError(t, err)
		pid, err := strconv.Atoi(string(content))
		require.NoError(t, err)
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		require.NoError(t, err)
		require.NotEmpty(t, processesIn(namespace))

		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		_ = up.Wait() // it fails because it lost its supervisor
		require.Eventually(t, func() bool {
			return len(processesWith(t, dir)) == 0 && len(processesIn(namespace)) == 0
		}, 3*time.Minute, 100*time.Millisecond)
		require.DirExists(t, dir, "nobody was there to remove it")

		up = startHalf(ctx, t, ctl, name) // it would refuse a directory in use
		require.NoError(t, up.Process.Signal(syscall.SIGINT))
		require.Error(t, up.Wait())
		require.Eventually(t, func() bool { return len(processesWith(t, dir)) == 0 }, 3*time.Minute, 100*time.Millisecond)
		require.NoDirExists(t, dir)
	})
}

// startHalf starts a cluster and returns when its node boots and etcd is ready.
func startHalf(ctx context.Context, t *testing.T, ctl, name string) *exec.Cmd {
	t.Helper()
	up := exec.CommandContext(ctx, ctl, "--name", name, "up")
	stderr, err := up.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, up.Start())
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), "etcd is ready") {
			return up
		}
	}
	t.Fatalf("%s up ended:\n%s", ctl, strings.Join(said, "\n"))
	return nil
}

// processesWith lists the processes that have the text in their arguments.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, file := range files {
		if content, err := os.ReadFile(file); err == nil && bytes.Contains(content, []byte(text)) {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

// processesIn lists the processes in a network namespace.
func processesIn(namespace string) []string {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net") // the pattern is right
	var found []string
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == namespace {
			found = append(found, filepath.Dir(filepath.Dir(link)))
		}
	}
	return found
}
