package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Defaults of the provisioner's flags, see its --help.
const (
	defaultWorkers = 10
	defaultQPS     = 200
	defaultBurst   = 400
)

const address = "127.0.0.1:8099"

// process is a running provisioner with exactly its service account's rights.
type process struct {
	bed  *bed
	cmd  *exec.Cmd
	log  string
	done chan error
}

// launch starts the provisioner with default flags, the bed's flags, and the environment of the shipped manifest
// plus more.
func (b *bed) launch(more ...string) (*process, error) {
	p := &process{bed: b, log: filepath.Join(b.dir, "provisioner.log"), done: make(chan error, 1)}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = b.cluster.Command(context.Background(), slices.Concat([]string{b.binary}, b.command,
		[]string{"--kubeconfig=" + b.kubeconfig, "--namespace=" + system, "--address=" + address}, b.flags)...)
	p.cmd.Env = slices.Concat(os.Environ(), b.environment, more)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	started := make(chan error)
	go func() {
		// It must end with this process. Pdeathsig refers to the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.done <- p.cmd.Wait()
		}
	}()
	return p, <-started
}

// end lets it shut down and release its lease to the next one.
func (p *process) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the provisioner: %w", err)
	}
	select {
	case err := <-p.done:
		if err != nil {
			return fmt.Errorf("the provisioner failed: %w: %s", err, p.logEnd())
		}
		return nil
	case <-time.After(longest):
		return errors.Join(errors.New("the provisioner does not end"), p.cmd.Process.Kill())
	}
}

func (p *process) logEnd() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-4000):])
}

// metric returns the value of one of its metrics.
func (p *process) metric(ctx context.Context, name string) (float64, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.bed.cluster.Dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the provisioner has no metric %s", name)
}

// settled waits until at least so many capacities have been written, and none for some seconds.
func (p *process) settled(ctx context.Context, least float64) (written float64, err error) {
	const quiet = 3 * time.Second
	var since time.Time
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, longest, true, func(ctx context.Context) (bool, error) {
		now, err := p.metric(ctx, "flexlvm_provisioner_capacity_writes_total")
		if err != nil {
			return false, nil // it has just started
		}
		if now != written || since.IsZero() {
			written, since = now, time.Now()
		}
		return written >= least && time.Since(since) > quiet, nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for %g writes of capacities, of which there are %g: %w: %s", least, written, err, p.logEnd())
	}
	return written, nil
}

// peak returns its peak resident memory, in MiB.
func (p *process) peak() (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("read the provisioner's memory: the kernel does not tell VmHWM")
}
