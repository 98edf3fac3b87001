package command

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
)

// script puts a program of this name into a directory of its own and returns a
// runner that finds nothing else there.
func script(t *testing.T, name, text string) *Host {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700))
	log, _ := logtest.NewNullLogger()
	return NewHost(dir, log)
}

func TestOutputIsKeptApart(t *testing.T) {
	h := script(t, "lvs", `echo out; echo err >&2; printf '%s|' "$@"; echo $LC_ALL $LVM_SUPPRESS_FD_WARNINGS`)
	res, err := h.Run(t.Context(), Command{Name: "lvs", Args: []string{"a b", "$(id)", "--"}})
	require.NoError(t, err)
	require.Equal(t, "out\na b|$(id)|--|C 1\n", string(res.Stdout))
	require.Equal(t, "err\n", string(res.Stderr))
}

func TestFailureSaysWhatItSaid(t *testing.T) {
	h := script(t, "lvcreate", "echo '{}'; echo '  no  luck' >&2; exit 5")
	_, err := h.Run(t.Context(), Command{Name: "lvcreate", Args: []string{"-n", "x"}})
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 5, exit.Code)
	require.Equal(t, "run lvcreate -n x: exit code 5: no luck", err.Error())
}

func TestMissingProgramNamesItsPackage(t *testing.T) {
	log, _ := logtest.NewNullLogger()
	for program, pkg := range map[string]string{"mkfs.xfs": "xfsprogs", "lvcreate": "lvm2", "wipefs": "util-linux"} {
		_, err := NewHost(t.TempDir(), log).Run(t.Context(), Command{Name: program})
		var missing *MissingError
		require.ErrorAs(t, err, &missing)
		require.ErrorContains(t, err, pkg)
	}
}

func TestDeadlineEndsDisposables(t *testing.T) {
	h := script(t, "mkfs.xfs", "trap '' TERM; while :; do :; done")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := h.Run(ctx, Command{Name: "mkfs.xfs", Disposable: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), "still runs")
}

// An LVM command in the middle of its work must never be killed: it is asked to
// end, and when it does not, it is left to finish.
func TestDeadlineLeavesOthersToFinish(t *testing.T) {
	dir := t.TempDir()
	began, goOn, done := filepath.Join(dir, "began"), filepath.Join(dir, "go-on"), filepath.Join(dir, "done")
	h := script(t, "lvextend", "trap '' TERM; : > "+began+"; until [ -e "+goOn+" ]; do /bin/sleep 0.02; done; echo much; echo "+"output >&2; : > "+done)
	h.patience = 100 * time.Millisecond
	there := func(file string) func() bool {
		return func() bool { _, err := os.Stat(file); return err == nil }
	}
	ctx, deadline := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := h.Run(ctx, Command{Name: "lvextend"})
		failed <- err
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
	_, err := h.Run(ctx, Command{Name: "lvs"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, mark)
}

func TestEveryCommandIsLogged(t *testing.T) {
	h := script(t, "lvs", "exit 3")
	log, hook := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	h.log = log
	_, err := h.Run(t.Context(), Command{Name: "lvs", Args: []string{"--x"}})
	require.Error(t, err)
	require.Equal(t, "lvs --x", hook.LastEntry().Message)
	require.Equal(t, true, hook.LastEntry().Data["failed"])
}

// A disposable program dies with the process that started it. This test runs
// itself as that process.
func TestDisposablesDieWithUs(t *testing.T) {
	if os.Getenv("FLEXLVM_TEST_PARENT") != "" {
		h := NewHost(os.Getenv("FLEXLVM_TEST_PARENT"), logrus.New())
		_, _ = h.Run(context.Background(), Command{Name: "mkfs.xfs", Disposable: true})
		return
	}
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	text := "#!/bin/sh\necho $$ > " + pidFile + ".tmp; /bin/mv " + pidFile + ".tmp " + pidFile + "; exec /bin/sleep 60\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mkfs.xfs"), []byte(text), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	parent, err := os.StartProcess(self, []string{self, "-test.run", "^TestDisposablesDieWithUs$"},
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

// gone reports whether a process has ended, also where nobody has waited for it.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
