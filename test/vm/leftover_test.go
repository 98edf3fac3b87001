//go:build vm

package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childEnv makes the test binary start a machine, print where it is, and wait to be killed.
const childEnv = "FLEXLVM_VM_TEST_CHILD"

// builderEnv makes the test binary run the named script as a build.
const builderEnv = "FLEXLVM_VM_TEST_BUILDER"

func TestMain(m *testing.M) {
	if script := os.Getenv(builderEnv); script != "" {
		if err := runScript(context.Background(), os.Stdout, filepath.Dir(script), filepath.Base(script)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(childEnv) == "" {
		if err := Announce(context.Background(), os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	machine, err := Start(context.Background(), Config{Disks: []Disk{{Size: 1 << 30}}, Timeout: time.Minute})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(machine.PID(), machine.dir.Path)
	time.Sleep(time.Minute)
}

// runs reports whether a process exists and is not a zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

// requireGone waits for a killed process to end.
func requireGone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return !runs(pid) }, time.Minute, 20*time.Millisecond)
}

func TestNothingOutlivesAKilledParent(t *testing.T) {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childEnv+"=1")
	child.Stderr = os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pidText, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
	require.True(t, ok, line)
	pid, err := strconv.Atoi(pidText)
	require.NoError(t, err)
	require.True(t, runs(pid))
	require.FileExists(t, filepath.Join(dir, "disk0"))

	other, err := NewRunDir(t.Context(), "vm")
	require.NoError(t, err)
	require.DirExists(t, dir, "its owner lives")
	require.NoError(t, other.Remove())

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	requireGone(t, pid)
	require.DirExists(t, dir)
	next, err := NewRunDir(t.Context(), "vm")
	require.NoError(t, err)
	require.NoDirExists(t, dir)
	require.NoError(t, next.Remove())
}

// The processes that a build script starts, as make starts compilers, end with the process that runs
// the script.
func TestNoBuildOutlivesAKilledParent(t *testing.T) {
	pause := fmt.Sprintf("600.%d", os.Getpid()) // identifies its process
	script := filepath.Join(t.TempDir(), "build.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nsleep "+pause+" &\necho building\nwait\n"), 0o755))
	builder := exec.Command("/proc/self/exe")
	builder.Env = append(os.Environ(), builderEnv+"="+script)
	builder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := builder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, builder.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "building\n", line)
	var started int
	require.Eventually(t, func() bool { // the shell may have forked but not yet called exec
		started = processOf(t, "sleep", pause)
		return started != 0
	}, time.Minute, 20*time.Millisecond)

	require.NoError(t, builder.Process.Kill())
	_ = builder.Wait() // it was killed
	requireGone(t, started)
}

// processOf returns the ID of the process with these arguments, or 0.
func processOf(t *testing.T, args ...string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || !slices.Equal(strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00"), args) {
			continue // it has ended, or is another process
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(t, err)
		return pid
	}
	return 0
}

// command builds the program that the Makefile and people use.
func command(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "run")
	out, err := exec.Command("go", "build", "-o", binary, "./run").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

func TestRunCommand(t *testing.T) {
	binary := command(t)
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("blockdev --getsize64 /dev/vda; printf %s \"$X\"; cat; exit 3\n"), 0o644))
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, "--disk", "300M", "--file", script+":/script", "--env", "X=y", "--", "sh", "/script")
	cmd.Stdin = strings.NewReader("in\x00put")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit, "%s", &stderr)
	require.Equal(t, 3, exit.ExitCode(), "%s", &stderr)
	require.Equal(t, "314572800\nyin\x00put", stdout.String())
	require.Empty(t, stderr.String())

	for _, args := range [][]string{
		{"--disk", "much", "--", "true"},
		{"--file", "nocolon", "--", "true"},
		{"--", "no-such-command"},
		{},
	} {
		cmd := exec.Command(binary, args...)
		out, err := cmd.CombinedOutput()
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 125, exit.ExitCode(), args)
		require.True(t, strings.HasPrefix(string(out), "run: "), "%s", out)
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Setenv("GOFLAGS", "")
			cmd := exec.Command(command(t), "--disk", "1G", "--", "sh", "-c", "echo up; sleep 60")
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "up\n", line)
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
			require.NoError(t, err)
			cache, err := CacheDir()
			require.NoError(t, err)
			pattern := filepath.Join(cache, "run", fmt.Sprintf("vm-%d-*", cmd.Process.Pid))
			dirs, err := filepath.Glob(pattern)
			require.NoError(t, err)
			require.Len(t, dirs, 1)

			require.NoError(t, cmd.Process.Signal(sig))
			var exit *exec.ExitError
			require.True(t, errors.As(cmd.Wait(), &exit))
			require.Equal(t, 125, exit.ExitCode())
			dirs, err = filepath.Glob(pattern)
			require.NoError(t, err)
			require.Empty(t, dirs)
			for _, child := range strings.Fields(string(children)) {
				pid, err := strconv.Atoi(child)
				require.NoError(t, err)
				requireGone(t, pid)
			}
		})
	}
}
