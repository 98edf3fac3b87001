package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a running machine. It dies with the process that started it.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	end  string // how it ended; set before done is closed
}

// Command returns the command that starts a program and appends its output to the file log. The caller must close
// the returned files once the program was started.
func (p Program) Command(ctx context.Context, log string) (cmd *exec.Cmd, opened []*os.File, err error) {
	for _, name := range append([]string{log}, p.Files...) {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			closeAll(opened)
			return nil, nil, err
		}
		opened = append(opened, f)
	}
	argv := p.Argv
	if p.OneProcessor {
		pinned, held, err := onOneProcessor(argv)
		if err != nil {
			closeAll(opened)
			return nil, nil, err
		}
		argv, opened = pinned, append(opened, held)
	}
	cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = opened[0], opened[0], opened[1:]
	return cmd, opened, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// startProgram starts a machine in a network namespace, with its program's output in dir. It is killed when ctx
// ends.
func startProgram(ctx context.Context, program Program, dir, netns string) (*Process, error) {
	cmd, opened, err := program.Command(ctx, filepath.Join(dir, backendLog))
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	defer closeAll(opened)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go p.run(netns, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	return p, nil
}

// backendLog is the file in a machine's folder with its program's output.
const backendLog = "backend.log"

// run starts the program and waits for its end on a thread of its own, because the death signal is sent when that
// thread ends. The thread is never unlocked: it may be in another network namespace.
func (p *Process) run(netns string, started chan<- error) {
	runtime.LockOSThread()
	if err := enterNetNS(netns); err != nil {
		started <- err
		return
	}
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	_ = p.cmd.Wait()
	p.end = p.cmd.ProcessState.String()
	close(p.done)
}

func enterNetNS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// PID returns the machine's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// how returns how the machine ended, or nil while it runs.
func (p *Process) how() error {
	select {
	case <-p.done:
		return fmt.Errorf("the machine ended: %s", p.end)
	default:
		return nil
	}
}

// Done is closed when the machine has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill kills the machine, as a power cut does, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tailError returns the last lines of a file as an error, or the lines from a kernel panic on; nil if the file is
// empty.
func tailError(title, file string) error {
	b, err := os.ReadFile(file)
	text := strings.TrimSpace(strings.ReplaceAll(string(b), "\r", ""))
	if err != nil || text == "" {
		return nil
	}
	const most = 40
	lines := strings.Split(text, "\n")
	panicked := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "Kernel panic") })
	switch {
	case panicked >= 0:
		lines = lines[panicked:min(panicked+most, len(lines))]
	case len(lines) > most:
		lines = append([]string{"…"}, lines[len(lines)-most:]...)
	}
	return fmt.Errorf("%s:\n\t%s", title, strings.Join(lines, "\n\t"))
}
