// Package served runs a server program and waits until it responds.
package served

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Config describes where the program runs. The zero value is a free port of this machine's loopback device.
type Config struct {
	// Address is host:port to listen on.
	Address string
	// Command returns the command to run, so that the program can be started in another network. Dial connects this
	// process to that network.
	Command func(ctx context.Context, argv ...string) *exec.Cmd
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	// Env is added to this process's environment.
	Env []string
}

// Program is a running program.
type Program struct {
	Address string

	cmd    *exec.Cmd
	ended  <-chan struct{}
	output bytes.Buffer // read only after it has ended
}

// startDeadline is how long the program may take until it responds, on a busy machine.
const startDeadline = 5 * time.Minute

// Start starts the command that argv returns for the address, and returns once it responds at path. It ends with
// Stop, or with this process.
func Start(ctx context.Context, cfg Config, path string, argv func(address string) []string) (*Program, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Program{Address: cfg.Address}
	p.cmd = cfg.Command(context.WithoutCancel(ctx), argv(cfg.Address)...)
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.ended, err = Run(p.cmd); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	if err := p.await(ctx, "http://"+cfg.Address+path, cfg.Dial); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Command == nil {
		c.Command = func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, argv[0], argv[1:]...)
		}
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Address == "" {
		// Released immediately; the program opens it some milliseconds later.
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return c, fmt.Errorf("find free port: %w", err)
		}
		c.Address = free.Addr().String()
		free.Close()
	}
	return c, nil
}

// Run starts a program on a thread that lives as long as the program: with Pdeathsig, the program ends with the
// thread that started it. The channel is closed once the program has ended.
func Run(cmd *exec.Cmd) (<-chan struct{}, error) {
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it was killed, or its output says why
		}
	}()
	return ended, <-started
}

func (p *Program) await(ctx context.Context, url string, dial func(context.Context, string, string) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	defer client.CloseIdleConnections()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("start server: it ended: %s", strings.TrimSpace(p.output.String()))
		case <-ctx.Done():
			return fmt.Errorf("start server: no answer from %s: %w", url, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop kills the program.
func (p *Program) Stop() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop server: %w", err)
	}
	<-p.ended
	return nil
}
