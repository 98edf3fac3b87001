//go:build vm

package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// children lists the child processes of parent, whichever thread started them.
func children(t *testing.T, parent int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	require.NoError(t, err)
	var all []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if !os.IsNotExist(err) { // the thread has ended meanwhile
			require.NoError(t, err)
		}
		all = append(all, strings.Fields(string(content))...)
	}
	return all
}

func TestMappingOfOwners(t *testing.T) {
	require.NoError(t, CheckReaders())
	owners, err := openEmptyUserNamespace()
	require.NoError(t, err)
	require.NoError(t, owners.Close())
	require.Empty(t, children(t, os.Getpid()))
}

// Go moves goroutines between threads, collects garbage and starts other programs at the same time.
func TestManyMappingsAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 12 {
				if err := CheckReaders(); err != nil {
					t.Errorf("check: %v", err)
				}
				if out, err := exec.Command("/proc/self/exe", "-test.run=^$").CombinedOutput(); err != nil {
					t.Errorf("another program: %v: %s", err, out)
				}
			}
		})
	}
	all.Wait()
	require.Empty(t, children(t, os.Getpid()))
}

const holder = "FLEXLVM_TEST_HOLDER"

// TestHolder is the process that TestHeldProcessEndsWithItsParent kills.
func TestHolder(t *testing.T) {
	if os.Getenv(holder) == "" {
		return
	}
	h, err := startHolder()
	require.NoError(t, err)
	fmt.Println("held", h.pid)
	<-time.After(time.Minute) // until it is killed; without a timer Go reports a deadlock
}

// The driver may be killed at any moment, and kubelet waits for every process that has its output open.
// So the held process must end with the driver.
func TestHeldProcessEndsWithItsParent(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHolder$")
	cmd.Env = append(os.Environ(), holder+"=1")
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscanf(output, "held %d\n", &pid)
	require.NoError(t, err)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGURG} {
		require.NoError(t, unix.Kill(pid, sig))
	}
	require.Equal(t, []string{fmt.Sprint(pid)}, children(t, cmd.Process.Pid), "it heeds no signal")
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, cmd.Process.Kill())
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int((10 * time.Second).Milliseconds()))
	for errors.Is(err, unix.EINTR) { // the end of a child is a signal to this process
		n, err = unix.Poll(poll, int((10 * time.Second).Milliseconds()))
	}
	require.NoError(t, err)
	require.Equal(t, 1, n, "it goes on")
	_ = cmd.Wait()
}

func BenchmarkMapping(b *testing.B) {
	for b.Loop() {
		owners, err := openEmptyUserNamespace()
		if err != nil {
			b.Fatal(err)
		}
		_ = owners.Close()
	}
}
