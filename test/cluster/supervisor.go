package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketName = "socket"
	// detachByte on the lifeline means that the end of the lifeline is to be ignored.
	detachByte = 'd'

	controlDeadline = 3 * time.Minute
	nodesDeadline   = 4 * time.Minute
)

// supervisor runs the processes of one cluster. It is process 1 of its PID namespace: when it ends, the kernel ends
// them all.
type supervisor struct {
	dir       string
	processes []*process
	api       *nodeWatch
	stop      context.CancelFunc
	began     time.Time
}

// Supervise runs a supervisor until its cluster has ended. It must be the first process of new PID, network and
// mount namespaces. lifeline is a pipe whose end means that the process that started the cluster is gone, unless a
// detachByte came first. progress receives a line for each step; the last one is "ready" or "failed: …".
func Supervise(dir string, lifeline io.Reader, progress io.WriteCloser) error {
	if os.Getpid() != 1 {
		return errors.New("supervise cluster: this is started by `up` and by tests only")
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		var last [1]byte
		for {
			n, err := lifeline.Read(last[:])
			if n == 1 && last[0] == detachByte {
				return
			}
			if err != nil {
				stop()
				return
			}
		}
	}()
	s := &supervisor{dir: dir, stop: stop, began: time.Now()}
	err := s.start(ctx, progress)
	switch {
	case err != nil && ctx.Err() == nil:
		kept, keepErr := keepLogs(dir)
		err = errors.Join(err, keepErr)
		fmt.Fprintf(progress, "failed: %v\nall logs are kept in %s\n", err, kept)
	case err != nil:
		fmt.Fprintln(progress, "failed: it was stopped")
	default:
		fmt.Fprintln(progress, "ready")
	}
	err = errors.Join(err, progress.Close())
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, s.end())
}

func (s *supervisor) start(ctx context.Context, progress io.Writer) error {
	plan, err := loadPlan(s.dir)
	if err != nil {
		return err
	}
	if err := isolate(); err != nil {
		return err
	}
	if err := makeNetwork(ctx, plan.Network); err != nil {
		return err
	}
	if s.api, err = newNodeWatch(s.dir); err != nil {
		return err
	}
	var control, nodes []*process
	for _, p := range plan.Control {
		control = append(control, newProcess(p, s.dir))
	}
	for _, p := range plan.Nodes {
		nodes = append(nodes, newProcess(p, s.dir))
	}
	s.processes = append(append(s.processes, control...), nodes...)
	if err := s.serve(); err != nil {
		return err
	}
	// Nodes boot while the control plane starts.
	for _, p := range nodes {
		if err := p.start(); err != nil {
			return err
		}
	}
	for _, p := range control {
		if err := s.startControl(ctx, p); err != nil {
			return err
		}
		s.say(progress, p.Name+" is ready")
	}
	if err := s.awaitServiceAccount(ctx, control[len(control)-1]); err != nil {
		return err
	}
	for _, p := range nodes {
		if err := s.awaitNode(ctx, p, ""); err != nil {
			return err
		}
		s.say(progress, p.Name+" is Ready")
	}
	return nil
}

func (s *supervisor) say(w io.Writer, what string) {
	fmt.Fprintf(w, "%5.1fs %s\n", time.Since(s.began).Seconds(), what)
}

// isolate makes this process's mounts private and mounts a /proc of its PID namespace.
func isolate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("isolate mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

func makeNetwork(ctx context.Context, lines []string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make network: %w: %s", err, out)
	}
	return nil
}

func (s *supervisor) startControl(ctx context.Context, p *process) error {
	if err := p.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, controlDeadline)
	defer cancel()
	return await(ctx, p, func() bool { return s.api.answers(ctx, p.Ready) })
}

// awaitServiceAccount waits until pods are admitted: the API server rejects them while their namespace has no
// service account. The wait fails if p, the last component of the control plane, ends.
func (s *supervisor) awaitServiceAccount(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, controlDeadline)
	defer cancel()
	return await(ctx, p, func() bool {
		return s.api.answers(ctx, "https://127.0.0.1:6443/api/v1/namespaces/default/serviceaccounts/default")
	})
}

// awaitNode waits until the node is Ready in a boot other than the given one.
func (s *supervisor) awaitNode(ctx context.Context, p *process, otherThan string) error {
	ctx, cancel := context.WithTimeout(ctx, nodesDeadline)
	defer cancel()
	return await(ctx, p, func() bool {
		node := s.bootOf(ctx, p)
		return node.ready && node.boot != otherThan
	})
}

// bootOf returns the node's state. While the API server is unavailable, it returns the boot that was observed last,
// and not ready.
func (s *supervisor) bootOf(ctx context.Context, p *process) nodeState {
	node := s.api.node(ctx, p.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if node.boot == "" {
		return nodeState{boot: p.boot}
	}
	p.boot = node.boot
	return node
}

// await polls until done returns true. It fails if the process ends.
func await(ctx context.Context, p *process, done func() bool) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		if !p.alive() {
			return p.failure("ended")
		}
		select {
		case <-ctx.Done():
			return p.failure("is not ready: " + context.Cause(ctx).Error())
		case <-tick.C:
		}
	}
	return nil
}

// serve answers the commands of the package's clients on a socket in the cluster's folder.
func (s *supervisor) serve() error {
	// A relative path, because a socket's path is limited in length.
	if err := os.Chdir(s.dir); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	listener, err := net.Listen("unix", socketName)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // ends with the process
	return nil
}

// end kills every process in the namespace and removes the cluster's folder.
func (s *supervisor) end() error {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return fmt.Errorf("end processes: %w", err)
	}
	for _, p := range s.processes {
		if err := p.kill(); err != nil {
			return err
		}
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("leave run folder: %w", err)
	}
	if err := os.RemoveAll(filepath.Clean(s.dir)); err != nil {
		return fmt.Errorf("remove run folder: %w", err)
	}
	return nil
}
