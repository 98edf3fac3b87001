package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"
)

// script creates a program in a directory of its own, and returns the Programs of this directory.
func script(t *testing.T, name, text string) Programs {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700))
	log, _ := logtest.NewNullLogger()
	return New(dir, log)
}

func TestOutputIsKeptApart(t *testing.T) {
	host := script(t, "lvs", `echo out; echo err >&2; printf '%s|' "$@"; echo $LC_ALL $LVM_SUPPRESS_FD_WARNINGS`)
	var stdout, stderr bytes.Buffer
	c := host.Unkillable.CommandContext(t.Context(), "lvs", "a b", "$(id)", "--")
	c.SetStdout(&stdout)
	c.SetStderr(&stderr)
	require.NoError(t, c.Run())
	require.Equal(t, "out\na b|$(id)|--|C 1\n", stdout.String())
	require.Equal(t, "err\n", stderr.String())

	out, err := host.Unkillable.Command("lvs").Output()
	require.NoError(t, err)
	require.Equal(t, "out\n|C 1\n", string(out))
	out, err = host.Unkillable.Command("lvs").CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "out\nerr\n|C 1\n", string(out))
}

func TestInputDirectoryAndEnvironment(t *testing.T) {
	host := script(t, "dmsetup", `read -r line; echo "$line, $PWD, $WHO"; read -r line || echo end`)
	c := host.Unkillable.Command("dmsetup")
	c.SetStdin(strings.NewReader("0 8 zero\n"))
	c.SetDir("/dev")
	c.SetEnv([]string{"WHO=me"})
	out, err := c.Output()
	require.NoError(t, err)
	require.Equal(t, "0 8 zero, /dev, me\nend\n", string(out))

	failing := host.Unkillable.Command("dmsetup")
	failing.SetStdin(iotest.ErrReader(errors.New("torn")))
	require.ErrorContains(t, failing.Run(), "run dmsetup: read its input: torn")
}

// No pipes are used: a program that reads from or writes to a pipe dies when the other end closes.
func TestNoPipes(t *testing.T) {
	c := script(t, "lvs", `for fd in 0 1 2; do [ ! -p /dev/fd/$fd ] || exit 1; done`).Unkillable.Command("lvs")
	_, err := c.StdoutPipe()
	require.ErrorIs(t, err, errPipe)
	_, err = c.StderrPipe()
	require.ErrorIs(t, err, errPipe)
	c.SetStdin(strings.NewReader("x"))
	_, err = c.Output()
	require.NoError(t, err)
}

func TestRunsOnce(t *testing.T) {
	c := script(t, "lvs", "").Unkillable.Command("lvs")
	require.ErrorContains(t, c.Wait(), "it was not started")
	c.Stop()
	require.NoError(t, c.Run())
	require.ErrorContains(t, c.Run(), "it was started before")
}

// Truncated output is an error, so that half a report cannot pass for a whole one.
func TestOutputIsBounded(t *testing.T) {
	host := script(t, "lvs", "printf 12345")
	host.Unkillable.(*runner).maxOutput = 5
	out, err := host.Unkillable.Command("lvs").Output()
	require.NoError(t, err)
	require.Equal(t, "12345", string(out))
	host.Unkillable.(*runner).maxOutput = 4
	out, err = host.Unkillable.Command("lvs").Output()
	require.ErrorContains(t, err, "run lvs: it printed more than 4 bytes")
	require.Empty(t, out)
}

func TestFailureSaysWhatItSaid(t *testing.T) {
	h := script(t, "lvcreate", "echo '{}'; echo '  no  luck' >&2; exit 5")
	_, err := h.Unkillable.Command("lvcreate", "-n", "x").Output()
	var exit exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.True(t, exit.Exited())
	require.Equal(t, 5, exit.ExitStatus())
	require.Equal(t, "run lvcreate -n x: exit code 5: no luck", err.Error())
	_, err = h.Unkillable.Command("lvcreate").CombinedOutput()
	require.EqualError(t, err, "run lvcreate: exit code 5: {} no luck")

	err = script(t, "lvs", "kill -9 $$").Unkillable.Command("lvs").Run()
	require.ErrorAs(t, err, &exit)
	require.False(t, exit.Exited())
	require.EqualError(t, err, "run lvs: exit code -1: it printed no reason")
}

func TestMissingProgramNamesItsPackage(t *testing.T) {
	log, _ := logtest.NewNullLogger()
	for program, pkg := range map[string]string{"mkfs.xfs": "xfsprogs", "lvcreate": "lvm2", "wipefs": "util-linux", "cryptsetup": "cryptsetup-bin", "mke2fs": "e2fsprogs"} {
		host := New(t.TempDir(), log).Unkillable
		err := host.Command(program).Run()
		require.ErrorIs(t, err, exec.ErrExecutableNotFound)
		require.ErrorContains(t, err, pkg)
		require.Equal(t, []string{program}, Missing(host, program))
	}
	require.Empty(t, Missing(New("", log).Killable, "sh"))
}

func TestDeadlineKillsTheKillable(t *testing.T) {
	h := script(t, "mkfs.xfs", "trap '' TERM; while :; do :; done")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := h.Killable.CommandContext(ctx, "mkfs.xfs").Run()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), "still runs")
}

// A killable program has its caller's deadline, or the default if there is none. No caller waits longer than the
// default for any other program, because it may hang while it holds LVM's lock.
func TestDefaultDeadline(t *testing.T) {
	late, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	h := script(t, "mkfs.xfs", "/bin/sleep 0.3")
	for _, r := range []exec.Interface{h.Killable, h.Unkillable} {
		r.(*runner).deadline = 50 * time.Millisecond
	}
	require.NoError(t, h.Killable.CommandContext(late, "mkfs.xfs").Run())
	require.ErrorIs(t, h.Killable.CommandContext(t.Context(), "mkfs.xfs").Run(), context.DeadlineExceeded)
	require.ErrorIs(t, h.Unkillable.CommandContext(late, "mkfs.xfs").Run(), context.DeadlineExceeded)
}

// An LVM command in the middle of its work must never be killed: it is asked to
// end, and when it does not, it is left to finish.
func TestDeadlineLeavesOthersToFinish(t *testing.T) {
	dir := t.TempDir()
	began, goOn, done := filepath.Join(dir, "began"), filepath.Join(dir, "go-on"), filepath.Join(dir, "done")
	h := script(t, "lvextend", "trap '' TERM; : > "+began+"; until [ -e "+goOn+" ]; do /bin/sleep 0.02; done; echo much; echo "+"output >&2; : > "+done)
	h.Unkillable.(*runner).killGracePeriod = 100 * time.Millisecond
	there := func(file string) func() bool {
		return func() bool { _, err := os.Stat(file); return err == nil }
	}
	ctx, deadline := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		failed <- h.Unkillable.CommandContext(ctx, "lvextend").Run()
	}()
	require.Eventually(t, there(began), time.Minute, time.Millisecond)
	deadline(context.DeadlineExceeded)
	err := <-failed
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "left to finish")
	require.NoFileExists(t, done)
	require.NoError(t, os.WriteFile(goOn, nil, 0o600))
	require.Eventually(t, there(done), time.Minute, time.Millisecond)
}

func TestEndedContextRunsNothing(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ran")
	h := script(t, "lvs", ": > "+mark)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Unkillable.CommandContext(ctx, "lvs").Run(), context.Canceled)
	require.NoFileExists(t, mark)
}

func TestEveryCommandIsLogged(t *testing.T) {
	log, hook := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	var seen []string
	host := New("/bin", log, func(program string, took time.Duration, err error) {
		require.Positive(t, took)
		seen = append(seen, fmt.Sprint(program, " ", err == nil))
	})
	require.Error(t, host.Unkillable.Command("sh", "-c", "exit 3").Run())
	require.Equal(t, "sh -c exit 3", hook.LastEntry().Message)
	require.Equal(t, true, hook.LastEntry().Data["failed"])
	require.NoError(t, host.Killable.Command("true").Run())
	require.NotContains(t, hook.LastEntry().Data, "failed")
	require.Error(t, host.Killable.Command("nothing").Run())
	require.Equal(t, []string{"sh false", "true true", "nothing false"}, seen)
}

func TestStop(t *testing.T) {
	began := filepath.Join(t.TempDir(), "began")
	const text = "trap 'echo asked; exit 7' TERM; : > %s; while :; do :; done"
	host := script(t, "lvs", fmt.Sprintf(text, began))
	for kind, run := range map[string]exec.Interface{"asked": host.Unkillable, "": host.Killable} {
		_ = os.Remove(began)
		var out bytes.Buffer
		c := run.Command("lvs")
		c.SetStdout(&out)
		require.NoError(t, c.Start())
		require.Eventually(t, func() bool { _, err := os.Stat(began); return err == nil }, time.Minute, time.Millisecond)
		c.Stop()
		require.ErrorIs(t, c.Wait(), context.Canceled)
		require.Equal(t, kind, strings.TrimSpace(out.String()))
	}
}

// A killable program dies with the process that started it. This test runs
// itself as that process.
func TestTheKillableDieWithUs(t *testing.T) {
	if os.Getenv("FLEXLVM_TEST_PARENT") != "" {
		_ = New(os.Getenv("FLEXLVM_TEST_PARENT"), logrus.New()).Killable.Command("mkfs.xfs").Run()
		return
	}
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	text := "#!/bin/sh\necho $$ > " + pidFile + ".tmp; /bin/mv " + pidFile + ".tmp " + pidFile + "; exec /bin/sleep 60\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mkfs.xfs"), []byte(text), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	parent, err := os.StartProcess(self, []string{self, "-test.run", "^TestTheKillableDieWithUs$"},
		&os.ProcAttr{Env: []string{"FLEXLVM_TEST_PARENT=" + dir}, Files: []*os.File{nil, nil, nil}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Stat(pidFile); return err == nil }, time.Minute, 5*time.Millisecond)
	b, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.NoError(t, parent.Kill())
	_, err = parent.Wait()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(child) }, time.Minute, 5*time.Millisecond)
}

// gone reports whether a process has ended, even if no parent has waited for it yet.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
