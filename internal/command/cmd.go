package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errPipe: a program that writes to a pipe dies of SIGPIPE if the pipe's reader dies.
var errPipe = errors.New("programs write to no pipe; use SetStdout, SetStderr or Output")

// cmd implements exec.Cmd: one program, run once.
type cmd struct {
	*runner
	ctx            context.Context
	argv           []string
	dir            string
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer // receive the output when the program ends; nil drops it
	combined       bool      // stderr goes to stdout, too

	file   string // path of the program
	begun  time.Time
	cancel context.CancelFunc // nil before Start
	done   chan error
	files  [3]*os.File // in memory: its input and output, by descriptor
}

func (c *cmd) String() string { return strings.Join(c.argv, " ") }

func (c *cmd) SetDir(dir string)       { c.dir = dir }
func (c *cmd) SetEnv(env []string)     { c.env = env }
func (c *cmd) SetStdin(in io.Reader)   { c.stdin = in }
func (c *cmd) SetStdout(out io.Writer) { c.stdout = out }
func (c *cmd) SetStderr(out io.Writer) { c.stderr = out }

// StdoutPipe and StderrPipe always fail.
func (c *cmd) StdoutPipe() (io.ReadCloser, error) { return nil, errPipe }
func (c *cmd) StderrPipe() (io.ReadCloser, error) { return nil, errPipe }

// Output runs the program and returns its standard output.
func (c *cmd) Output() ([]byte, error) {
	var out bytes.Buffer
	c.stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns its standard output and standard error.
func (c *cmd) CombinedOutput() ([]byte, error) {
	c.combined = true
	return c.Output()
}

// Run runs the program to its end.
func (c *cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Start starts the program, always with a deadline (see bounded).
func (c *cmd) Start() error {
	c.begun = time.Now()
	err := c.start()
	if err != nil {
		err = fmt.Errorf("run %s: %w", c, err)
		c.report(c.argv, time.Since(c.begun), err)
	}
	return err
}

// Wait waits for the program to end, or for the deadline and then up to killGracePeriod.
func (c *cmd) Wait() error {
	if c.done == nil {
		return fmt.Errorf("run %s: it was not started", c)
	}
	err := c.result(<-c.done)
	c.report(c.argv, time.Since(c.begun), err)
	return err
}

// Stop has the effect of the end of the context. It does not wait.
func (c *cmd) Stop() {
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *cmd) start() error {
	if c.cancel != nil {
		return errors.New("it was started before")
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.left.refuse(c.String()); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		c.close()
		return err
	}
	var process *osexec.Cmd
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel sends a parent-death signal when the thread that forked ends,
		// so that thread must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		process, err = c.launch()
		started <- err
		if err == nil {
			ended <- process.Wait()
		}
	}()
	if err := <-started; err != nil {
		c.close()
		return err
	}
	ctx, cancel := c.bounded()
	c.cancel, c.done = cancel, make(chan error, 1)
	go func() {
		defer cancel()
		c.done <- c.await(ctx, process, ended)
	}()
	return nil
}

// bounded returns a context with the program's deadline. A killable program has the context's own deadline,
// if there is one, because mkfs may take long. All other programs are waited for no longer than the default
// deadline: if a disk hangs, LVM hangs and holds flexlvm's lock, and a longer wait would keep other callers
// from reporting that. They are left to finish anyway.
func (c *cmd) bounded() (context.Context, context.CancelFunc) {
	if _, has := c.ctx.Deadline(); has && c.killable {
		return context.WithCancel(c.ctx)
	}
	return context.WithTimeout(c.ctx, c.deadline)
}

// prepare finds the program, and creates the files of its input and output.
func (c *cmd) prepare() (err error) {
	if c.file, err = c.LookPath(c.argv[0]); err != nil {
		return err
	}
	for fd, name := range []string{"stdin", "stdout", "stderr"} {
		if c.files[fd], err = memoryFile(name); err != nil {
			return err
		}
	}
	return c.fillInput()
}

// launch starts the program, in the control group if there is one, else in the group of this process.
func (c *cmd) launch() (*osexec.Cmd, error) {
	var refusal error
	if group, is := c.group.fd(); is {
		p := c.process()
		p.SysProcAttr.UseCgroupFD, p.SysProcAttr.CgroupFD = true, group
		if refusal = p.Start(); refusal == nil {
			return p, nil
		}
	}
	p := c.process()
	err := p.Start()
	if err == nil && refusal != nil {
		c.group.refused(c.log, refusal)
	}
	return p, err
}

// process returns the process to start.
func (c *cmd) process() *osexec.Cmd {
	p := &osexec.Cmd{Path: c.file, Args: c.argv, Env: c.env, Dir: c.dir, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if c.killable {
		p.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	p.Stdin, p.Stdout, p.Stderr = c.files[0], c.files[1], c.files[2]
	if c.combined {
		p.Stderr = p.Stdout
	}
	return p
}

// fillInput copies all of the input into a file: os/exec would feed the program from a pipe, which ends
// with this process.
func (c *cmd) fillInput() error {
	if c.stdin == nil {
		return nil
	}
	_, err := io.Copy(c.files[0], c.stdin)
	if err == nil {
		_, err = c.files[0].Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("read its input: %w", err)
	}
	return nil
}

func (c *cmd) await(ctx context.Context, p *osexec.Cmd, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	sig := syscall.SIGTERM
	if c.killable {
		sig = syscall.SIGKILL
	}
	_ = p.Process.Signal(sig)
	select {
	case err := <-ended:
		if err == nil {
			return nil // it succeeded after all
		}
		return fmt.Errorf("gave up: %w (%s)", context.Cause(ctx), err.Error())
	case <-time.After(c.killGracePeriod):
		c.leave(p.Process.Pid, ended)
		return fmt.Errorf("gave up, process %d still runs and is left to finish: %w", p.Process.Pid, context.Cause(ctx))
	}
}

// result passes on what the program printed, and converts the way it ended to an error with the reason.
func (c *cmd) result(waitErr error) error {
	defer c.close()
	stdout, err := c.printed(c.files[1])
	if err != nil {
		return errors.Join(waitErr, err)
	}
	stderr, err := c.printed(c.files[2])
	if err != nil {
		return errors.Join(waitErr, err)
	}
	if err := errors.Join(write(c.stdout, stdout), write(c.stderr, stderr)); err != nil {
		return errors.Join(waitErr, fmt.Errorf("run %s: write its output: %w", c, err))
	}
	var exit *osexec.ExitError
	switch {
	case waitErr == nil:
		return nil
	case !errors.As(waitErr, &exit):
		return fmt.Errorf("run %s: %w", c, waitErr)
	case c.combined:
		stderr = stdout
	}
	return exitError{command: c.String(), code: exit.ExitCode(), printed: string(stderr)}
}

// printed returns the content of a file. It fails if that is too long: a truncated report must not be
// taken for a whole one.
func (c *cmd) printed(f *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, c.maxOutput+1))
	if err != nil {
		return nil, fmt.Errorf("run %s: read what it printed: %w", c, err)
	}
	if int64(len(b)) > c.maxOutput {
		return nil, fmt.Errorf("run %s: it printed more than %d bytes", c, c.maxOutput)
	}
	return b, nil
}

func (c *cmd) close() {
	for _, f := range c.files {
		if f != nil {
			_ = f.Close()
		}
	}
}

func write(w io.Writer, b []byte) error {
	if w == nil || len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}

func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for its %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
