package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Kubectl runs kubectl as the cluster's administrator and returns its standard output. Its standard error is in the
// error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, nil, args...)
}

// KubectlInput is Kubectl with a standard input, for `apply -f -`.
func (c *Cluster) KubectlInput(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	out, err := output(c.KubectlCommand(ctx, args...), stdin)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Established waits until the API server serves the kinds of all CustomResourceDefinitions. It retries where
// `kubectl wait` fails immediately because a definition has no conditions yet.
func (c *Cluster) Established(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=3m")
		if err != nil && strings.Contains(err.Error(), "conditions accessor error") {
			return false, nil
		}
		return err == nil, err
	})
}

// AccountKubeconfig writes a kubeconfig with a service account's token that is valid for two hours: a program that
// uses it has exactly that account's rights.
func (c *Cluster) AccountKubeconfig(ctx context.Context, namespace, account, path string) error {
	authority, err := os.ReadFile(filepath.Join(c.dir, "pki/ca.crt"))
	if err != nil {
		return err
	}
	token, err := c.Kubectl(ctx, "create", "token", account, "-n", namespace, "--duration=2h")
	if err != nil {
		return err
	}
	return os.WriteFile(path, clientConfig(authority, account, "token: "+strings.TrimSpace(token)), 0o600)
}

// KubectlCommand returns the command that Kubectl runs. Its discovery cache is in the cluster's folder, because the
// next cluster has the same address.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	kubectl := []string{filepath.Join(c.dir, "kubectl"), "--kubeconfig=" + filepath.Join(c.dir, adminKubeconfig),
		"--cache-dir=" + filepath.Join(c.dir, "kubectl-cache")}
	cmd := c.inside(ctx, append(kubectl, args...)...)
	cmd.Env = append(os.Environ(), rarelyCollected...)
	return cmd
}

// Node runs a command on a node, passing each argument literally, and returns its standard output. Its standard
// error is in the error.
func (c *Cluster) Node(ctx context.Context, node string, command ...string) (string, error) {
	return c.NodeInput(ctx, nil, node, command...)
}

// NodeInput is Node with a standard input.
func (c *Cluster) NodeInput(ctx context.Context, stdin io.Reader, node string, command ...string) (string, error) {
	quoted := make([]string, len(command))
	for i, arg := range command {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	for try := 1; ; try++ {
		cmd, err := c.NodeCommand(ctx, node, quoted...)
		if err != nil {
			return "", err
		}
		out, err := output(cmd, stdin)
		if err == nil {
			return out, nil
		}
		if !refusedBeforeLogin(err) || stdin != nil || try == 10 {
			return out, fmt.Errorf("on %s: %s: %w", node, strings.Join(command, " "), err)
		}
		time.Sleep(time.Second)
	}
}

// refusedBeforeLogin reports whether a node has refused a connection because five others had not logged in yet, which
// is dropbear's limit for an address.
func refusedBeforeLogin(err error) bool {
	return strings.Contains(err.Error(), "kex_exchange_identification")
}

// NodeCommand returns an SSH client that runs a line of shell on a node or, without a line, an interactive shell.
func (c *Cluster) NodeCommand(ctx context.Context, node string, line ...string) (*exec.Cmd, error) {
	address := ""
	for i := 1; i <= 9; i++ {
		if nodeName(i) == node {
			address = nodeAddress(i)
		}
	}
	if address == "" {
		return nil, fmt.Errorf("find node: no node %q; they are called %s, %s …", node, nodeName(1), nodeName(2))
	}
	args := []string{"ssh", "-i", filepath.Join(c.dir, sshKey), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=60",
		"-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=6", // nodes lose power
		"-o", "HostKeyAlgorithms=ssh-ed25519", "-F", "none"}
	if len(line) == 0 {
		args = append(args, "-t")
	}
	return c.inside(ctx, append(append(args, "root@"+address), line...)...), nil
}

// LoadImage imports an image archive on all nodes in parallel.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	all, err := c.Status(ctx)
	if err != nil {
		return err
	}
	nodes, ctx := errgroup.WithContext(ctx)
	for _, s := range all {
		if s.Node {
			nodes.Go(func() error { return c.loadImageOn(ctx, s.Name, archive) })
		}
	}
	return nodes.Wait()
}

func (c *Cluster) loadImageOn(ctx context.Context, node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer f.Close()
	_, err = c.NodeInput(ctx, f, node, "sh", "-c", "ctr -n k8s.io images import - && sync")
	return err
}

// PowerCut ends the node as a power failure does: data that the guest did not flush to its disks is lost. PowerOn
// boots it again from the same disks.
func (c *Cluster) PowerCut(ctx context.Context, node string) error {
	return c.Kill(ctx, node)
}

// PowerOn boots a node and waits until it is Ready.
func (c *Cluster) PowerOn(ctx context.Context, node string) error {
	return c.Run(ctx, node)
}

// Reboot shuts the node down cleanly, boots it and waits until it is Ready.
func (c *Cluster) Reboot(ctx context.Context, node string) error {
	boot, err := c.Node(ctx, node, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	// In the background: otherwise the SSH session would end with the node, and with an error.
	if _, err := c.Node(ctx, node, "sh", "-c", "(sleep 0.5; exec busybox reboot) </dev/null >/dev/null 2>&1 &"); err != nil {
		return err
	}
	return c.command(ctx, http.MethodPost, "/nodes/"+node+"/await?boot="+strings.TrimSpace(boot), nil)
}

// Kill kills a component of the control plane, or a node, with SIGKILL.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	return c.command(ctx, http.MethodPost, "/processes/"+name+"/kill", nil)
}

// Run starts what Kill has killed and waits until it is ready.
func (c *Cluster) Run(ctx context.Context, name string) error {
	return c.command(ctx, http.MethodPost, "/processes/"+name+"/start", nil)
}

// Status lists the control plane's components and the nodes.
func (c *Cluster) Status(ctx context.Context) ([]Status, error) {
	var all []Status
	return all, c.command(ctx, http.MethodGet, "/status", &all)
}

// Log returns the end of the logs of a component or a node.
func (c *Cluster) Log(name string, lines int) string {
	logs, err := filepath.Glob(filepath.Join(c.dir, name+"*.log"))
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, log := range logs {
		fmt.Fprintf(&text, "--- end of %s\n%s\n", log, tail(log, lines))
	}
	return text.String()
}

// KeepLogs copies all logs to a folder that outlives the cluster and returns it.
func (c *Cluster) KeepLogs() (string, error) { return keepLogs(c.dir) }

// inside returns a command in the cluster's network namespace.
func (c *Cluster) inside(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", c.pid), "--"}, argv...)...)
	// Otherwise it would keep the namespace alive.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func output(cmd *exec.Cmd, stdin io.Reader) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// command sends a request to the supervisor.
func (c *Cluster) command(ctx context.Context, method, path string, into any) error {
	dir, err := os.Open(c.dir)
	if err != nil {
		return fmt.Errorf("ask supervisor: %w", err)
	}
	defer dir.Close()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			// A socket's path is limited in length; this one is always short.
			return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, nil)
	if err != nil {
		return fmt.Errorf("ask supervisor: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask supervisor: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // the status reports the failure in any case
		return fmt.Errorf("ask supervisor to %s: %s", path, strings.TrimSpace(string(text)))
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("ask supervisor: %w", err)
	}
	return nil
}
