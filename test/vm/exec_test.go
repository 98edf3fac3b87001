//go:build vm

package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// blob must arrive unchanged. It spans many frames and ends with a partial one.
var blob = func() []byte {
	b := make([]byte, 5<<20+7)
	_, _ = rand.Read(b)
	return b
}()

// TestExec runs everything that needs no disk in one guest.
func TestExec(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(host, "tree"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(host, "blob"), blob, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(host, "tree/script"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755))
	require.NoError(t, os.Symlink("script", filepath.Join(host, "tree/link")))
	m := start(t, Config{Files: map[string]string{
		"/blob":               filepath.Join(host, "blob"),
		"/usr/local/lib/tree": filepath.Join(host, "tree"),
		"/bin/via-link":       filepath.Join(host, "tree/link"),
	}})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Machine)
	}{
		{"exit codes", testExitCodes},
		{"a command that is not there is an error", testMissingCommand},
		{"output is exact and apart", testExactOutput},
		{"one writer for both keeps their order", testOrder},
		{"input arrives, and its end", testInput},
		{"unread input holds nothing up", testUnreadInput},
		{"environment and folder", testEnvironment},
		{"files, folders, links and modes", testFiles},
		{"commands at once", testConcurrent},
		{"a daemon that keeps the output open", testDaemon},
		{"a command dies with its context", testCancel},
		{"a terminal", testTerminal},
		{"orphans are reaped", testOrphans},
		{"the kernel has what the project's tests need", testModules},
		{"loop devices", testLoop},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, m) })
	}
}

func testExitCodes(t *testing.T, m *Machine) {
	exits := []struct {
		name   string
		args   []string
		code   int
		signal int
	}{
		{"success", []string{"true"}, 0, 0},
		{"failure", []string{"sh", "-c", "exit 3"}, 3, 0},
		{"largest", []string{"sh", "-c", "exit 255"}, 255, 0},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, 137, 9},
		{"segmentation fault", []string{"sh", "-c", "kill -SEGV $$"}, 139, 11},
	}
	for _, test := range exits {
		t.Run(test.name, func(t *testing.T) {
			r, err := m.Exec(t.Context(), Command{Args: test.args})
			require.NoError(t, err)
			require.Equal(t, test.code, r.ExitCode)
			require.Equal(t, test.signal, r.Signal)
			require.Empty(t, r.Stdout)
			require.Empty(t, r.Stderr)
		})
	}
}

func testMissingCommand(t *testing.T, m *Machine) {
	_, err := m.Exec(t.Context(), Command{Args: []string{"no-such-command"}})
	require.ErrorContains(t, err, "no-such-command")
	_, err = m.Exec(t.Context(), Command{Args: []string{"/etc/passwd"}})
	require.ErrorContains(t, err, "permission denied")
}

func testExactOutput(t *testing.T, m *Machine) {
	r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", `cat /blob; printf 'a\r\n\0\004b' >&2`}})
	require.NoError(t, err)
	require.True(t, bytes.Equal(blob, r.Stdout), "%d bytes of %d", len(r.Stdout), len(blob))
	require.Equal(t, "a\r\n\x00\x04b", string(r.Stderr))
}

func testOrder(t *testing.T, m *Machine) {
	var both bytes.Buffer
	script := "for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"
	_, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", script}, Stdout: &both, Stderr: &both})
	require.NoError(t, err)
	require.Equal(t, "o1\ne1\no2\ne2\no3\ne3\n", both.String())
}

func testInput(t *testing.T, m *Machine) {
	r, err := m.Exec(t.Context(), Command{Args: []string{"cat"}, Stdin: bytes.NewReader(blob)})
	require.NoError(t, err)
	require.True(t, bytes.Equal(blob, r.Stdout))
	r, err = m.Exec(t.Context(), Command{Args: []string{"cat"}})
	require.NoError(t, err)
	require.Empty(t, r.Stdout)
}

func testUnreadInput(t *testing.T, m *Machine) {
	r, err := m.Exec(t.Context(), Command{Args: []string{"sleep", "0.2"}, Stdin: bytes.NewReader(blob)})
	require.NoError(t, err)
	require.Zero(t, r.ExitCode)
}

func testEnvironment(t *testing.T, m *Machine) {
	r, err := m.Exec(t.Context(), Command{
		Args: []string{"sh", "-c", `echo "$A|$HOME|$PWD"`}, Env: []string{"A=b c\nd"}, Dir: "/usr/lib",
	})
	require.NoError(t, err)
	require.Equal(t, "b c\nd|/root|/usr/lib\n", string(r.Stdout))
}

func testFiles(t *testing.T, m *Machine) {
	require.Equal(t, "600 0:0\n", shell(t, m, "stat -c '%a %u:%g' /blob"))
	require.Equal(t, "x y\n", shell(t, m, "/usr/local/lib/tree/link x y"))
	require.Equal(t, "script\n", shell(t, m, "readlink /usr/local/lib/tree/link"))
	require.Equal(t, "z\n", shell(t, m, "test -L /bin; via-link z"))
}

func testConcurrent(t *testing.T, m *Machine) {
	const n = 8
	shell(t, m, "mkdir /tmp/meet")
	// Each command waits until all have started.
	script := fmt.Sprintf("touch /tmp/meet/$0; until [ $(ls /tmp/meet | wc -l) = %d ]; do sleep 0.1; done; echo $0", n)
	done := make(chan string, n)
	for i := range n {
		go func() {
			r, err := m.Exec(t.Context(), Command{Args: []string{"timeout", "60", "sh", "-c", script, fmt.Sprint(i)}})
			done <- fmt.Sprintf("%d: %d %s%v", i, r.ExitCode, r.Stdout, err)
		}()
	}
	for range n {
		got := <-done
		require.Equal(t, got[:1]+": 0 "+got[:1]+"\n<nil>", got)
	}
}

func testDaemon(t *testing.T, m *Machine) {
	r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", "sleep 60 & echo started"}})
	require.NoError(t, err)
	require.Zero(t, r.ExitCode)
	require.Equal(t, "started\n", string(r.Stdout))
}

func testCancel(t *testing.T, m *Machine) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := m.Exec(ctx, Command{Args: []string{"sh", "-c", "sleep 1234 | cat"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool {
		r, err := m.Exec(t.Context(), Command{Args: []string{"pgrep", "-fx", "sleep 1234"}})
		return err == nil && r.ExitCode == 1
	}, 30*time.Second, 50*time.Millisecond)
}

func testTerminal(t *testing.T, m *Machine) {
	sizes := make(chan wire.WindowSize, 1)
	sizes <- wire.WindowSize{Rows: 50, Cols: 120}
	r, err := m.Exec(t.Context(), Command{
		Args:  []string{"bash", "-c", "tty; until [ \"$(stty size)\" = '50 120' ]; do sleep 0.05; done; read x; echo got:$x; exit 4"},
		TTY:   &wire.WindowSize{Rows: 24, Cols: 80},
		Stdin: strings.NewReader("hello\n"), Resize: sizes,
	})
	require.NoError(t, err)
	require.Equal(t, 4, r.ExitCode)
	require.Contains(t, string(r.Stdout), "/dev/pts/0\r\n")
	require.Contains(t, string(r.Stdout), "got:hello\r\n")
}

func testOrphans(t *testing.T, m *Machine) {
	shell(t, m, `for i in 1 2 3; do (true &) ; done; sleep 0.3
		for i in $(seq 300); do ps -eo stat= | grep -q Z || exit 0; sleep 0.1; done; ps -e; exit 1`)
}

func testModules(t *testing.T, m *Machine) {
	shell(t, m, `modprobe -a dm-thin-pool dm-raid dm-flakey dm-log-writes dm-delay dm-snapshot \
		xfs vfat overlay loop nfsd nfs virtio_net veth bridge nft_nat nf_conntrack`)
}

func testLoop(t *testing.T, m *Machine) {
	shell(t, m, "truncate -s 64M /tmp/l; d=$(losetup -f --show /tmp/l); mkfs.vfat $d; blkid -o value -s TYPE $d; losetup -d $d")
}
