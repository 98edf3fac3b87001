package flexvolume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
)

// The test binary acts as the driver when these are set, because redirecting stdout and stderr needs a
// separate process.
const (
	envEngine = "FLEXVOLUME_TEST_ENGINE"
	envLog    = "FLEXVOLUME_TEST_LOG"
)

func TestMain(m *testing.M) {
	kind, play := os.LookupEnv(envEngine)
	if !play {
		os.Exit(m.Run())
	}
	cfg := Config{LogFile: os.Getenv(envLog), Engine: func(logrus.FieldLogger) (Engine, error) {
		switch kind {
		case "none":
			return nil, errors.New("no engine here")
		case "panics at birth":
			panic("at birth")
		}
		return &fakeEngine{do: func(context.Context) error {
			fmt.Println("a library prints")
			_, _ = fmt.Fprintln(os.Stderr, "and complains")
			child := exec.Command("/bin/sh", "-c", "echo a child prints; echo and complains >&2; ls /proc/self/fd >&2")
			child.Stdout, child.Stderr = os.Stdout, os.Stderr
			_ = child.Run()
			if kind == "panics" {
				panic("in the engine")
			}
			return nil
		}}, nil
	}}
	os.Exit(Serve(cfg, os.Args[1:]))
}

type outcome struct {
	stdout, stderr string
	code           int
}

func driver(t *testing.T, engine, log string, args ...string) outcome {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), envEngine+"="+engine, envLog+"="+log)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestServe(t *testing.T) {
	mount := []string{"mount", target, with(nil)}
	for name, c := range map[string]struct {
		engine string
		args   []string
		status string
		says   string
		logs   []string
	}{
		"success":            {"", mount, "Success", "", []string{"a library prints", "and complains", "a child prints", "call succeeded"}},
		"panic":              {"panics", mount, "Failure", "internal error", []string{"in the engine", "handler.go"}},
		"panic at the start": {"panics at birth", mount, "Failure", "internal error", []string{"at birth"}},
		"no engine":          {"none", mount, "Failure", "no engine here", []string{"no engine here"}},
		"refused":            {"", []string{"mount"}, "Failure", "arguments of mount", []string{"call refused"}},
		"a verb of others":   {"", []string{"attach", "{}", "node"}, "Not supported", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "made", "driver.log")
			got := driver(t, c.engine, log, c.args...)
			var reply Reply
			require.Empty(t, got.stderr)
			require.Equal(t, 1, strings.Count(got.stdout, "\n"), got.stdout)
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &reply), got.stdout)
			require.Equal(t, c.status, reply.Status)
			require.Contains(t, reply.Message, c.says)
			require.Equal(t, c.status == "Success", got.code == 0)
			text, err := os.ReadFile(log)
			require.NoError(t, err)
			for _, line := range c.logs {
				require.Contains(t, string(text), line)
			}
		})
	}
}

func TestServeInitTouchesNothing(t *testing.T) {
	log := filepath.Join(t.TempDir(), "made", "driver.log")
	got := driver(t, "panics at birth", log, "init")
	require.Equal(t, outcome{initReply, "", 0}, got)
	require.NoFileExists(t, log)
	require.NoDirExists(t, filepath.Dir(log))
}

func TestServeNeverLogsASecret(t *testing.T) {
	log := filepath.Join(t.TempDir(), "driver.log")
	got := driver(t, "", log, "mount", target, with(map[string]string{"kubernetes.io/secret/password": "aHVudGVyMg=="}))
	require.Equal(t, 1, got.code)
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NotContains(t, got.stdout+string(text), "aHVudGVyMg")
	require.Contains(t, got.stdout, "secretRef")
}

// TestServeWithoutLog checks that a log that cannot be opened does not fail a pod.
func TestServeWithoutLog(t *testing.T) {
	inTheWay := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(inTheWay, nil, 0o600))
	for _, log := range []string{filepath.Join(inTheWay, "driver.log"), filepath.Dir(inTheWay)} {
		got := driver(t, "", log, "mount", target, with(nil))
		require.Equal(t, outcome{"{\"status\":\"Success\"}\n", "", 0}, got)
	}
}

// TestServeWithoutStdout checks that the process ends even if nothing reads its output.
func TestServeWithoutStdout(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command("/bin/sh", "-c", `exec "$0" unmount /x >&- 2>&-`, self)
	cmd.Env = append(os.Environ(), envEngine+"=", envLog+"="+filepath.Join(t.TempDir(), "driver.log"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(out))
}

// TestLogRotation checks that a log that is too large is renamed once, however many processes find it
// so, that old logs are deleted, and that no line is lost.
func TestLogRotation(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "driver.log")
	for i := range keptLogs + 2 {
		old := filepath.Join(dir, fmt.Sprintf("driver-20200101T00000%d.000000000.log", i))
		require.NoError(t, os.WriteFile(old, []byte("old"), 0o600))
	}
	require.NoError(t, os.WriteFile(log, bytes.Repeat([]byte("x\n"), maxLogSize/2), 0o600))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { driver(t, "none", log, "unmount", "/x") })
	}
	all.Wait()
	kept, err := filepath.Glob(filepath.Join(dir, "driver-*.log"))
	require.NoError(t, err)
	require.Len(t, kept, keptLogs)
	var lines int
	for _, name := range append(kept, log) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		lines += strings.Count(string(text), "no engine here")
	}
	require.Equal(t, 8, lines)
	info, err := os.Stat(log)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(maxLogSize))
}
