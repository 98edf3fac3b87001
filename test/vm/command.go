package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// Command is a program to run in a guest, as root.
type Command struct {
	Args []string
	// Env is added to PATH, HOME and TERM.
	Env []string
	// Dir is the working directory, / if empty.
	Dir   string
	Stdin io.Reader
	// Stdout and Stderr receive the output as it appears. If one is nil, that output is collected in the Result.
	// They may be the same writer. A writer that blocks stalls all communication with the guest.
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal of this size, whose output goes to Stdout.
	TTY *wire.WindowSize
	// Resize receives new sizes of the terminal.
	Resize <-chan wire.WindowSize
}

// Result is how a command ended.
type Result struct {
	// ExitCode is 128 + the signal's number if a signal ended the command.
	ExitCode int
	// Signal is the number of that signal, or 0.
	Signal         int
	Stdout, Stderr []byte
}

// Run boots a machine, runs a command in it, and removes the machine. It returns an error if the machine failed or
// the command could not be started; an exit code other than 0 is not an error.
func Run(ctx context.Context, config Config, command Command) (Result, error) {
	m, err := Start(ctx, config)
	if err != nil {
		return Result{}, err
	}
	result, err := m.Exec(ctx, command)
	if err == nil && m.keepsDisk() {
		err = m.PowerOff()
	}
	return result, errors.Join(err, m.Close())
}

func (m *Machine) keepsDisk() bool {
	for _, d := range m.config.Disks {
		if d.Path != "" {
			return true
		}
	}
	return m.config.Root != ""
}

// Exec runs a command in the guest and waits for its end. If ctx ends first, the command is killed.
func (m *Machine) Exec(ctx context.Context, c Command) (Result, error) {
	m.mu.Lock()
	g, process := m.guest, m.process
	m.mu.Unlock()
	var stdout, stderr bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	r := g.begin(c.Stdout, c.Stderr)
	defer g.forget(r.stream)
	request := wire.ExecRequest{Args: c.Args, Env: c.Env, Dir: c.Dir, TTY: c.TTY}
	fail := func(err error) (Result, error) {
		return Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()},
			fmt.Errorf("run %s in the guest: %w", strings.Join(c.Args, " "), err)
	}
	if err := g.sendJSON(wire.Exec, r.stream, request); err != nil {
		return fail(err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go g.feed(r.stream, c.Stdin)
	go g.resize(r.stream, c.Resize, ended)
	select {
	case status := <-r.exit:
		if status.Error != "" {
			return fail(errors.New(status.Error))
		}
		return Result{
			ExitCode: status.Code, Signal: status.Signal,
			Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
		}, nil
	case <-g.gone:
		return fail(m.explain(g.err, process))
	case <-ctx.Done():
		_ = g.send(wire.Frame{Kind: wire.Kill, Stream: r.stream})
		return fail(ctx.Err())
	}
}

// feed sends a command's input and its end.
func (g *guest) feed(stream uint32, in io.Reader) {
	buffer := make([]byte, wire.MaxPayload)
	for in != nil {
		n, err := in.Read(buffer)
		if n > 0 && g.send(wire.Frame{Kind: wire.Stdin, Stream: stream, Payload: buffer[:n]}) != nil {
			return
		}
		if err != nil {
			break
		}
	}
	_ = g.send(wire.Frame{Kind: wire.Stdin, Stream: stream})
}

func (g *guest) resize(stream uint32, sizes <-chan wire.WindowSize, ended <-chan struct{}) {
	for {
		select {
		case size := <-sizes:
			_ = g.sendJSON(wire.Resize, stream, size)
		case <-ended:
			return
		}
	}
}
