package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// As in a DaemonSet, the program installs the driver, repairs it, and ends when its context does.
func TestKeepsTheDriver(t *testing.T) {
	driver := filepath.Join(t.TempDir(), "flexlvm")
	require.NoError(t, os.WriteFile(driver, []byte("driver"), 0o600))
	dir := filepath.Join(t.TempDir(), "exec")
	installed := filepath.Join(dir, "flexlvm.io~flexlvm", "flexlvm")
	isThere := func() bool { content, err := os.ReadFile(installed); return err == nil && string(content) == "driver" }
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr await.Output
	ended := make(chan int)
	go func() {
		ended <- run(ctx, []string{"--driver=" + driver, "--plugin-dir=" + dir, "--interval=20ms"}, &stdout, &stderr)
	}()
	require.Eventually(t, isThere, time.Minute, 5*time.Millisecond)
	require.Eventually(t, func() bool { return stdout.String() == "flexlvm unreleased installed: "+installed+"\n" }, time.Minute, 5*time.Millisecond)
	putBack := func(times int) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Count(stderr.String(), "had gone or was damaged") == times }, time.Minute, 5*time.Millisecond)
		require.True(t, isThere())
	}
	require.NoError(t, os.Remove(installed))
	putBack(1) // and verified: damage before that would be an error
	require.NoError(t, os.WriteFile(installed, []byte("hurt"), 0o600))
	putBack(2)
	cancel()
	require.Zero(t, <-ended)
	require.True(t, isThere())
}

func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"version":       {[]string{"--version"}, 0, "installer unreleased\n", ""},
		"help":          {[]string{"--help"}, 0, "", "usage: installer"},
		"unknown flag":  {[]string{"--wait"}, 2, "", "-wait"},
		"a word":        {[]string{"now"}, 2, "", `unknown argument "now"`},
		"no interval":   {[]string{"--interval=0s"}, 2, "", "--interval 0s: must be more than 0"},
		"relative":      {[]string{"--plugin-dir=exec"}, 1, "", "--plugin-dir: "},
		"driver absent": {[]string{"--plugin-dir=" + t.TempDir(), "--driver=/nowhere/flexlvm"}, 1, "", "/nowhere/flexlvm"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr await.Output
			require.Equal(t, tt.code, run(t.Context(), tt.args, &stdout, &stderr))
			require.Equal(t, tt.stdout, stdout.String())
			require.Contains(t, stderr.String(), tt.stderr)
		})
	}
}

// TestLeanBinary checks that the program links none of the packages that would make it many times
// larger, because nearly all of it is resident on every node.
func TestLeanBinary(t *testing.T) {
	program := filepath.Join(t.TempDir(), "installer")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	b, err := os.ReadFile(program)
	require.NoError(t, err)
	require.True(t, bytes.Contains(b, []byte("internal/install.Place.Keep")), "the binary holds no names, so this test finds none")
	for _, heavy := range []string{"net/http.", "net.", "text/template.", "github.com/spf13/", "google.golang.org/", "crypto/internal/fips140"} {
		require.False(t, bytes.Contains(b, []byte("\x00"+heavy)), heavy)
	}
}
