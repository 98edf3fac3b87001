package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/vm"
)

// Cluster is a running cluster.
type Cluster struct {
	dir string
	pid int // of the supervisor
	log io.Writer
	// lifeline ends the cluster when it is closed; nil if the cluster is detached.
	lifeline io.Closer
}

const (
	sshKey  = "login"
	pidFile = "pid"
)

// Start builds what is missing, starts a cluster and returns once all its nodes are Ready. Unless the cluster is
// detached, it ends with this process, however that ends.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := Setup(ctx, cfg.Log); err != nil {
		return nil, err
	}
	binaries, err := BuildKubernetes(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	var parts nodeParts
	if !cfg.ControlPlaneOnly {
		if parts, err = findNodeParts(ctx, cfg, binaries); err != nil {
			return nil, err
		}
	}
	run, err := makeRunDir(ctx, cfg.Name)
	if err != nil {
		return nil, err
	}
	defer run.lock.Close() // the supervisor has inherited it
	c := &Cluster{dir: run.path, log: cfg.Log}
	if err := c.prepare(ctx, cfg, binaries, parts); err != nil {
		return nil, errors.Join(err, os.RemoveAll(run.path))
	}
	fmt.Fprintf(cfg.Log, "%5.1fs prepared\n", time.Since(began).Seconds())
	if err := c.supervise(ctx, cfg, run); err != nil {
		return nil, err
	}
	return c, nil
}

// nodeParts are what all nodes have in common.
type nodeParts struct {
	backend vm.Backend
	tools   string
}

func findNodeParts(ctx context.Context, cfg Config, binaries string) (nodeParts, error) {
	backend, err := cfg.FindBackend(ctx, cfg.Log)
	if err == nil && backend.Name == vm.ARM64 {
		err = fmt.Errorf("start cluster: its nodes run on no other processor than this machine's; unset %s", vm.NodesEnv)
	}
	if err != nil {
		return nodeParts{}, err
	}
	fmt.Fprintln(cfg.Log, backend)
	images, err := testImages(ctx)
	if err != nil {
		return nodeParts{}, err
	}
	tools, err := toolsDisk(ctx, binaries, images)
	return nodeParts{backend: backend, tools: tools}, err
}

// prepare creates the files in the cluster's folder.
func (c *Cluster) prepare(ctx context.Context, cfg Config, binaries string, parts nodeParts) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	if err := run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test cluster", "-f", filepath.Join(c.dir, sshKey)); err != nil {
		return err
	}
	control, err := prepareControl(c.dir, binaries, ca, cfg.ControllerManagerFlags)
	if err != nil {
		return err
	}
	var nodes []program
	if !cfg.ControlPlaneOnly {
		if nodes, err = prepareNodes(ctx, c.dir, cfg, parts.backend, parts.tools, ca); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(binaries, "kubectl"), filepath.Join(c.dir, "kubectl")); err != nil {
		return fmt.Errorf("prepare kubectl: %w", err)
	}
	return plan{Network: networkPlan(cfg.Nodes), Control: control, Nodes: nodes}.save(c.dir)
}

// supervise starts the supervisor and waits until the cluster is ready.
func (c *Cluster) supervise(ctx context.Context, cfg Config, run *runDir) error {
	ctl, err := buildCtl(ctx, c.dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(c.dir))
	}
	log, err := os.Create(filepath.Join(c.dir, "supervisor.log"))
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	defer log.Close()
	// Not CommandContext: the supervisor ends when its lifeline closes, and cleans up.
	cmd := exec.Command(ctl, "supervise", c.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Setsid:     true, // Ctrl-C must reach only this process
	}
	cmd.ExtraFiles = []*os.File{run.lock}
	cmd.Stderr = log
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	progress, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start supervisor: %w", err), os.RemoveAll(c.dir))
	}
	c.pid, c.lifeline = cmd.Process.Pid, lifeline
	end := func(err error) error {
		lifeline.Close()
		return errors.Join(err, cmd.Wait())
	}
	if err := os.WriteFile(filepath.Join(c.dir, pidFile), []byte(strconv.Itoa(c.pid)), 0o644); err != nil {
		return end(fmt.Errorf("start supervisor: %w", err))
	}
	stopped := context.AfterFunc(ctx, func() { lifeline.Close() })
	defer stopped()
	if err := followProgress(progress, cfg.Log); err != nil {
		return end(errors.Join(ctx.Err(), err))
	}
	if cfg.Detach {
		if _, err := lifeline.Write([]byte{detachByte}); err != nil {
			return end(fmt.Errorf("detach supervisor: %w", err))
		}
		c.lifeline = nil
	}
	go func() { _ = cmd.Wait() }() // reaps it; Stop checks the folder
	return nil
}

// followProgress copies lines to the log until the last one, which reports success or failure.
func followProgress(progress io.Reader, log io.Writer) error {
	lines := bufio.NewScanner(progress)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "ready":
			return nil
		case strings.HasPrefix(line, "failed: "):
			text := []string{strings.TrimPrefix(line, "failed: ")}
			for lines.Scan() {
				text = append(text, lines.Text())
			}
			return fmt.Errorf("start cluster: %s", strings.Join(text, "\n"))
		default:
			fmt.Fprintln(log, line)
		}
	}
	return errors.Join(errors.New("start cluster: the supervisor ended"), lines.Err())
}

// ErrNotRunning: there is no such cluster.
var ErrNotRunning = errors.New("it is not running")

// Attach returns the running cluster of that name.
func Attach(name string) (*Cluster, error) {
	dir, err := runDirPath(name)
	if err != nil {
		return nil, err
	}
	alive, err := running(dir)
	if err != nil {
		return nil, err
	}
	if !alive {
		return nil, fmt.Errorf("find cluster %q: %w", name, ErrNotRunning)
	}
	content, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	pid, err := strconv.Atoi(string(content))
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	return &Cluster{dir: dir, pid: pid, log: io.Discard}, nil
}

// Dir returns the folder with the logs of all components.
func (c *Cluster) Dir() string { return c.dir }

// Stop ends the cluster and waits until its processes and files are gone.
func (c *Cluster) Stop(ctx context.Context) error {
	if err := c.command(ctx, "POST", "/stop", nil); err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ended := syscall.Kill(c.pid, 0) == syscall.ESRCH
		if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) && ended {
			return nil
		} else if ended {
			return fmt.Errorf("stop cluster: the supervisor left %s, which the next start removes", c.dir)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop cluster: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
