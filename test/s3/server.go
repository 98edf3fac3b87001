package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/served"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Config describes a server. The zero value is a server on a free port of the loopback device, with its data in a
// folder that Stop removes.
type Config struct {
	// Address is host:port to listen on; default a free port of 127.0.0.1.
	Address string
	// Dir is a folder for its data, which is kept; default a temporary folder.
	Dir string
	// Domain, if set, lets clients name a bucket in the host: bucket.Domain.
	Domain string
	// Command returns the command to run, so that the server can be started in another network; default
	// exec.CommandContext. The address must be valid in that network.
	Command func(ctx context.Context, argv ...string) *exec.Cmd
	// Dial connects to that address from this process; default net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log receives a line before something takes long; default none.
	Log io.Writer
}

// Server is a running S3 server. Its methods' errors name the bucket.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// Access and Secret are the credentials of its only user, who has all rights.
	Access, Secret string

	cfg    Config
	cmd    *exec.Cmd
	ended  <-chan struct{}
	output bytes.Buffer // read only after it has ended
	owned  string       // folder that Stop removes

	once      sync.Once // guards the fields below
	client    *minio.Client
	clientErr error
}

// Region is the region of all buckets.
const Region = "us-east-1"

// startDeadline is how long the server may take until it responds, on a busy machine.
const startDeadline = 5 * time.Minute

// Start builds what is missing, starts a server and returns once it responds. The server ends with Stop, or with
// this process.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	binary, err := binary(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	// The secret is unique: a server that accepts it is this one.
	s := &Server{Endpoint: "http://" + cfg.Address, Access: "flexlvm-test", Secret: rand.Text(), cfg: cfg}
	if cfg.Dir == "" {
		if s.owned, err = os.MkdirTemp("", "flexlvm-s3-"); err != nil {
			return nil, fmt.Errorf("start S3 server: %w", err)
		}
		s.cfg.Dir = s.owned
	}
	if err := s.launch(ctx, binary); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// binary returns the server's program. The first call builds it.
func binary(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	return built.Module(ctx, filepath.Join(root, "test/s3/server"), "versitygw", "github.com/versity/versitygw/cmd/versitygw", log)
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
		// Released immediately; the server opens it some milliseconds later.
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return c, fmt.Errorf("find free port: %w", err)
		}
		c.Address = free.Addr().String()
		free.Close()
	}
	return c, nil
}

// launch starts the program and waits until it answers.
func (s *Server) launch(ctx context.Context, binary string) error {
	// Metadata is stored beside the objects, not among them.
	folders := map[string]string{"data": "", "meta": "", "versions": ""}
	for name := range folders {
		folders[name] = filepath.Join(s.cfg.Dir, name)
		if err := os.MkdirAll(folders[name], 0o755); err != nil {
			return fmt.Errorf("start S3 server: %w", err)
		}
	}
	argv := []string{binary, "--port", s.cfg.Address, "--region", Region, "--quiet", "--keep-alive"}
	if s.cfg.Domain != "" {
		argv = append(argv, "--virtual-domain", s.cfg.Domain)
	}
	argv = append(argv, "posix", "--sidecar", folders["meta"], "--versioning-dir", folders["versions"], folders["data"])
	s.cmd = s.cfg.Command(context.WithoutCancel(ctx), argv...)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.Access, "ROOT_SECRET_KEY="+s.Secret)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if s.ended, err = served.Run(s.cmd); err != nil {
		return fmt.Errorf("start S3 server: %w", err)
	}
	return s.await(ctx)
}

// await waits until the server responds and accepts the secret.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	client, err := s.Client()
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := client.ListBuckets(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("start S3 server: it ended: %s", strings.TrimSpace(s.output.String()))
		case <-ctx.Done():
			return fmt.Errorf("start S3 server: no good answer from %s: %w", s.Endpoint, err)
		case <-tick.C:
		}
	}
}

func (s *Server) transport() *http.Transport {
	return &http.Transport{DialContext: s.cfg.Dial, MaxIdleConnsPerHost: 64}
}

// CPU returns the processor time that the server has used so far, in user and kernel mode.
func (s *Server) CPU() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("ask what the S3 server takes: %w", err)
	}
	// The name, which may contain any character, is followed by the state and 10 numbers (proc(5)).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const utime, ticks = 11, 100 // Linux reports hundredths of a second
	total := int64(0)
	for _, field := range fields[utime : utime+2] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("ask what the S3 server takes: %w", err)
		}
		total += n
	}
	return time.Duration(total) * time.Second / ticks, nil
}

// Stop kills the server and removes its temporary folder.
func (s *Server) Stop() error {
	if s.ended != nil && s.cmd.Process != nil {
		if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop S3 server: %w", err)
		}
		<-s.ended
	}
	if s.owned == "" {
		return nil
	}
	if err := os.RemoveAll(s.owned); err != nil {
		return fmt.Errorf("stop S3 server: %w", err)
	}
	return nil
}
