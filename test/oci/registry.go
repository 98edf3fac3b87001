// Package oci starts a real registry for tests.
package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Config says where it runs. The zero value is this machine's loopback device.
type Config struct {
	// Address is where it listens, host:port; default a free port of 127.0.0.1.
	Address string
	// Command and Dial are as those of an S3 server's Config.
	Command func(ctx context.Context, argv ...string) *exec.Cmd
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	// Log gets a line where something takes long; default none.
	Log io.Writer
}

// Registry is one that runs. It asks nobody who he is.
type Registry struct {
	// Host is its host:port.
	Host string

	cmd    *exec.Cmd
	ended  chan struct{}
	output bytes.Buffer // read once it has ended
	dir    string
}

// startDeadline is how long it may take until it answers: a busy machine.
const startDeadline = 30 * time.Second

// Start builds what is missing, starts a registry and returns when it answers. It ends with
// Stop, or with this process.
func Start(ctx context.Context, cfg Config) (*Registry, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	binary, err := built.Module(ctx, filepath.Join(root, "test/oci/server"), "crane", "github.com/google/go-containerregistry/cmd/crane", cfg.Log)
	if err != nil {
		return nil, err
	}
	r := &Registry{Host: cfg.Address, ended: make(chan struct{})}
	if r.dir, err = os.MkdirTemp("", "flexlvm-registry-"); err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	r.cmd = cfg.Command(context.WithoutCancel(ctx), binary, "registry", "serve", "--address", cfg.Address, "--disk", r.dir)
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.run(); err != nil {
		return nil, errors.Join(fmt.Errorf("start registry: %w", err), os.RemoveAll(r.dir))
	}
	if err := r.await(ctx, cfg.Dial); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
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
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.Address == "" {
		// Given back at once, and taken by the registry some milliseconds later.
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return c, fmt.Errorf("find free port: %w", err)
		}
		c.Address = free.Addr().String()
		free.Close()
	}
	return c, nil
}

// run starts the program on a thread that stays: with the thread that started it the
// program ends.
func (r *Registry) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(r.ended)
		err := r.cmd.Start()
		started <- err
		if err == nil {
			_ = r.cmd.Wait() // killed, or it says why
		}
	}()
	return <-started
}

func (r *Registry) await(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	defer client.CloseIdleConnections()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Host+"/v2/", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
			return nil
		}
		select {
		case <-r.ended:
			return fmt.Errorf("start registry: it ended: %s", strings.TrimSpace(r.output.String()))
		case <-ctx.Done():
			return fmt.Errorf("start registry: no answer from %s: %w", r.Host, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the registry at once and removes what it had.
func (r *Registry) Stop() error {
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop registry: %w", err)
	}
	<-r.ended
	return os.RemoveAll(r.dir)
}
