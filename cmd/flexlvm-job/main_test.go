package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

// call runs a command and returns its output.
func call(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(jobvolume.EnvDir, dir)
	t.Setenv(jobvolume.EnvWorker, "3")
	t.Setenv(jobvolume.EnvSize, "4096")
	for _, step := range []struct {
		command string
		code    int
		stdout  string
	}{
		{"job-dir", 0, dir + "\n"},
		{"job-dir-exists", 0, ""},
		{"worker-dir-exists", 1, ""},
		{"worker-size", 0, "4096\n"},
		{"worker-used", 0, "0\n"},
		{"worker-fits", 0, ""},
		{"worker-dir", 0, dir + "/worker-3\n"},
		{"worker-dir-exists", 0, ""},
		{"log-file", 0, dir + "/logs/worker-3.log\n"},
	} {
		code, stdout, stderr := call(step.command)
		require.Equal(t, step.code, code, step.command+stderr)
		require.Equal(t, step.stdout, stdout)
		require.Empty(t, stderr)
	}
	require.DirExists(t, filepath.Join(dir, "logs"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "worker-3", "large"), make([]byte, 64<<10), 0o600))
	code, _, _ := call("worker-fits")
	require.Equal(t, no, code)
	t.Setenv(jobvolume.EnvSize, "")
	code, _, _ = call("worker-size")
	require.Equal(t, no, code, "nothing says so")
}

func TestFailures(t *testing.T) {
	t.Setenv(jobvolume.EnvDir, filepath.Join(t.TempDir(), "nothing"))
	t.Setenv(jobvolume.EnvWorker, "3")
	code, _, _ := call("job-dir-exists")
	require.Equal(t, no, code)
	for _, args := range [][]string{{"worker-dir"}, {"log-file"}, {"job-dir"}, {"purge"}, {}, {"job-dir", "x"}, {"install", "/proc/nothing"}} {
		code, stdout, stderr := call(args...)
		require.Equal(t, failed, code, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "flexlvm-job: ")
	}
	t.Setenv(jobvolume.EnvWorker, "")
	code, _, stderr := call("job-dir")
	require.Equal(t, failed, code)
	require.Contains(t, stderr, "JOB_COMPLETION_INDEX")
	code, stdout, _ := call("--help")
	require.Equal(t, yes, code)
	require.Equal(t, usage, stdout)
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		code, _, stderr := call("install", dir)
		require.Equal(t, yes, code, stderr)
		info, err := os.Stat(filepath.Join(dir, "flexlvm-job"))
		require.NoError(t, err)
		require.Equal(t, "-rwxr-xr-x", info.Mode().String())
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
