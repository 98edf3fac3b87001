//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

// The lease of the provisioners under test is long, because a busy machine stalls them and most are not
// restarted. It is short in tests in which a lease has to expire.
var (
	leaseFlags = []string{"--lease-duration=10m", "--lease-renew-deadline=9m", "--lease-retry-period=1s"}
	shortLease = []string{"--lease-duration=" + leaseDuration.String(), "--lease-renew-deadline=16s"}
)

const leaseDuration = 20 * time.Second

// withShortLease starts provisioners with a short lease until the test ends.
func (b *bed) withShortLease(t *testing.T) {
	usual := b.flags
	b.flags = append(slices.Clone(usual), shortLease...)
	t.Cleanup(func() { b.flags = usual })
}

// process is a provisioner's process.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // set when done is closed
}

// run starts a provisioner with only its service account's rights, and with its health endpoint on
// 127.0.0.1:port.
func (b *bed) run(t *testing.T, port int) *process {
	t.Helper()
	p, err := b.launch(t.Context(), port)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the provisioner on port %d:\n%s", port, p.logEnd())
		}
	})
	return p
}

func (b *bed) launch(ctx context.Context, port int) (*process, error) {
	p := &process{log: filepath.Join(b.dir, fmt.Sprintf("provisioner-%d.log", port)), done: make(chan struct{})}
	b.dropLease(ctx)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	argv := append([]string{b.binary}, b.command...)
	argv = append(argv, "--kubeconfig="+b.kubeconfig, "--namespace="+system, "--log-level=debug",
		fmt.Sprintf("--address=127.0.0.1:%d", port))
	argv = append(argv, leaseFlags...)
	p.cmd = b.cluster.Command(context.WithoutCancel(ctx), append(argv, b.flags...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The signal is sent when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		if err == nil {
			b.running.Add(1)
		}
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			b.running.Add(-1)
			close(p.done)
		}
	}()
	return p, <-started
}

// dropLease deletes the lease of provisioners that were killed, unless another one runs that may take
// it over. Only testLeaderKilled tests that a lease expires.
func (b *bed) dropLease(ctx context.Context) {
	if b.running.Load() > 0 {
		return
	}
	for _, name := range []string{"flexlvm.io", "nfs.flexlvm.io"} {
		_ = b.client.CoordinationV1().Leases(system).Delete(ctx, name, metav1.DeleteOptions{}) // there may be no lease, or no API server
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

func (p *process) logEnd() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(content), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "")
}

// keep restarts the provisioner whenever it ends, as kubelet does, until stop is called. each is called
// with every process.
func (b *bed) keep(t *testing.T, port int, each func(*process)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil {
			p, err := b.launch(ctx, port)
			if err != nil {
				t.Errorf("start provisioner: %v", err)
				return
			}
			if each != nil {
				each(p)
			}
			select {
			case <-p.done:
				time.Sleep(200 * time.Millisecond)
			case <-ctx.Done():
				p.kill()
			}
		}
	})
	return func() {
		cancel()
		busy.Wait()
	}
}

// get sends an HTTP request to a provisioner.
func (b *bed) get(ctx context.Context, port int, path string) (int, string, error) {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.cluster.Dial(ctx, network, address)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// metric returns a metric's value as text.
func (b *bed) metric(t *testing.T, port int, name string) string {
	t.Helper()
	_, body, err := b.get(t.Context(), port, "/metrics")
	require.NoError(t, err)
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s in:\n%s", name, body)
	return ""
}

// ready waits until a provisioner is ready.
func (b *bed) ready(t *testing.T, port int) {
	t.Helper()
	await.Until(t, longest, func() string {
		code, body, err := b.get(t.Context(), port, "/readyz")
		if err != nil || code != http.StatusOK {
			return fmt.Sprintf("provisioner is not ready: %d %s %v", code, body, err)
		}
		return ""
	})
}

// leader returns the identity in the lease, or "" if nobody holds it.
func (b *bed) leader(t *testing.T) string {
	t.Helper()
	lease, err := b.client.CoordinationV1().Leases(system).Get(t.Context(), "flexlvm.io", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
