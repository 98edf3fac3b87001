// Package command runs the host's programs. Nothing else in flexlvm executes.
//
// It uses os/exec and not k8s.io/utils/exec, because two things that keep data
// safe are out of that package's reach: what a child does when its parent is
// killed, and output that goes to a file instead of a pipe, so that an LVM
// command that outlives us never dies of SIGPIPE between two metadata writes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// A Command is one program with its arguments; no shell is ever involved.
type Command struct {
	Name string // looked up in Path, never in the working directory
	Args []string
	// Disposable programs may be killed at any instant with nothing lost, as mkfs
	// on a volume in state creating: they die with us and at the deadline. All
	// others are only asked to end (SIGTERM), and left to finish: an LVM command
	// killed between suspend and resume would leave a device that hangs.
	Disposable bool
}

func (c Command) String() string { return strings.Join(append([]string{c.Name}, c.Args...), " ") }

// A Result is what a program that exited 0 printed.
type Result struct {
	Stdout []byte
	Stderr []byte
}

// A Runner runs a command to its end. Errors: *ExitError, *MissingError, or one
// that wraps the context's.
type Runner interface {
	Run(ctx context.Context, c Command) (Result, error)
}

// An ExitError is a program that ran and failed.
type ExitError struct {
	Command string
	Code    int // -1 when a signal ended it
	Stderr  string
}

func (e *ExitError) Error() string {
	detail := strings.Join(strings.Fields(e.Stderr), " ")
	if detail == "" {
		detail = "it printed no reason"
	}
	return fmt.Sprintf("run %s: exit code %d: %s", e.Command, e.Code, detail)
}

// A MissingError is a program that is not on this host.
type MissingError struct {
	Name string
	Path string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("run %s: the program is not on this host (looked in %s); install the package that holds it (%s)", e.Name, e.Path, packageOf(e.Name))
}

// packageOf names the package for the operator; the names are those of Debian,
// Fedora and SUSE alike.
func packageOf(program string) string {
	if strings.HasPrefix(program, "mkfs.xfs") || strings.HasPrefix(program, "xfs_") {
		return "xfsprogs"
	}
	switch program {
	case "wipefs", "blkid", "lsblk":
		return "util-linux"
	}
	return "lvm2"
}

// DefaultPath is where host tools live. kubelet's own PATH often lacks sbin.
const DefaultPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/run/current-system/sw/bin"

// Host runs commands on this host.
type Host struct {
	path string
	log  logrus.FieldLogger

	patience time.Duration
}

// NewHost returns a Runner that looks programs up in path (DefaultPath if
// empty) and writes a line for each command to log.
func NewHost(path string, log logrus.FieldLogger) *Host {
	if path == "" {
		path = DefaultPath
	}
	return &Host{path: path, log: log, patience: patience}
}

const (
	defaultDeadline = 2 * time.Minute
	// patience is how long a program that was asked to end may take before we
	// leave it alone and report.
	patience = 5 * time.Second
	// maxOutput is far above a full report of 10,000 volumes.
	maxOutput = 64 << 20
)

// Run implements Runner. A context without a deadline gets one.
func (h *Host) Run(ctx context.Context, c Command) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultDeadline)
	defer cancel()
	start := time.Now()
	res, err := h.run(ctx, c)
	line := h.log.WithField("took", time.Since(start).Round(time.Millisecond))
	if err != nil {
		line = line.WithField("failed", true)
	}
	line.Debug(c.String())
	return res, err
}

func (h *Host) run(ctx context.Context, c Command) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Name, err)
	}
	file, err := h.find(c.Name)
	if err != nil {
		return Result{}, err
	}
	stdout, err := capture("stdout")
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Name, err)
	}
	defer func() { _ = stdout.Close() }()
	stderr, err := capture("stderr")
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Name, err)
	}
	defer func() { _ = stderr.Close() }()

	cmd := &exec.Cmd{Path: file, Args: append([]string{c.Name}, c.Args...), Env: h.environment(), Dir: "/"}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.Disposable {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := h.await(ctx, c, cmd); err != nil {
		return Result{}, failure(c, err, contents(stderr))
	}
	return Result{Stdout: contents(stdout), Stderr: contents(stderr)}, nil
}

// await starts cmd and waits for its end, or for the deadline and as much
// longer as the kind of program deserves.
func (h *Host) await(ctx context.Context, c Command, cmd *exec.Cmd) error {
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel sends a parent-death signal when the thread that forked ends,
		// so that thread must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	sig := syscall.SIGTERM
	if c.Disposable {
		sig = syscall.SIGKILL
	}
	_ = cmd.Process.Signal(sig)
	select {
	case err := <-ended:
		if err == nil {
			return nil // it came to its end after all
		}
		return fmt.Errorf("gave up: %w (%s)", context.Cause(ctx), err.Error())
	case <-time.After(h.patience):
		return fmt.Errorf("gave up, process %d still runs and is left to finish: %w", cmd.Process.Pid, context.Cause(ctx))
	}
}

func failure(c Command, err error, stderr []byte) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &ExitError{Command: c.String(), Code: exit.ExitCode(), Stderr: strings.TrimSpace(string(stderr))}
	}
	return fmt.Errorf("run %s: %w", c, err)
}

func (h *Host) find(name string) (string, error) {
	for _, dir := range filepath.SplitList(h.path) {
		file := filepath.Join(dir, name)
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
	}
	return "", &MissingError{Name: name, Path: h.path}
}

// Lacks names those of the programs that are not on this host.
func (h *Host) Lacks(programs ...string) (missing []string) {
	for _, name := range programs {
		if _, err := h.find(name); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// environment is fixed: messages and numbers in the C locale, and no warnings
// about descriptors that the caller left open.
func (h *Host) environment() []string {
	return []string{"PATH=" + h.path, "LC_ALL=C", "HOME=/", "LVM_SUPPRESS_FD_WARNINGS=1"}
}

// capture is a file in memory for a program's output.
func capture(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("capture output: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func contents(f *os.File) []byte {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxOutput))
	if err != nil {
		return nil
	}
	return b
}
