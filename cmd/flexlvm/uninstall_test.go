package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// If a volume is mounted after the driver was removed, the driver is installed again until the volume
// is unmounted.
func TestUninstallGoesOnLooking(t *testing.T) {
	proc, plugins := t.TempDir(), filepath.Join(t.TempDir(), "exec")
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "self/ns"), 0o755))
	require.NoError(t, os.Symlink("pid:[4026531836]", filepath.Join(proc, "self/ns/pid")))
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "1"), 0o755))
	mounts := func(lines string) {
		require.NoError(t, os.WriteFile(filepath.Join(proc, "1/next"), []byte(lines), 0o644))
		require.NoError(t, os.Rename(filepath.Join(proc, "1/next"), filepath.Join(proc, "1/mountinfo")))
	}
	mounts("")
	driver := filepath.Join(plugins, "flexlvm.io~flexlvm/flexlvm")
	require.NoError(t, os.MkdirAll(filepath.Dir(driver), 0o755))
	require.NoError(t, os.WriteFile(driver, []byte("driver"), 0o755))
	driverIs := func(there bool) {
		t.Helper()
		require.Eventually(t, func() bool { _, err := os.Lstat(driver); return (err == nil) == there }, time.Minute, time.Millisecond)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr await.Output
	cmd := newUninstall()
	cmd.SetContext(ctx)
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	o := uninstallOptions{installOptions: installOptions{pluginDir: plugins, wait: true, interval: 5 * time.Millisecond}, proc: proc}
	ended := make(chan error)
	go func() { ended <- o.run(cmd, nil) }()
	driverIs(false)
	require.Eventually(t, func() bool { return stdout.String() == "flexlvm uninstalled: "+driver+"\n" }, time.Minute, time.Millisecond)

	mounts("90 22 253:3 / /var/lib/kubelet/pods/0f1/volumes/flexlvm.io~flexlvm/pvc-1 rw,relatime shared:7 - xfs /dev/mapper/flexlvm-pvc--1 rw\n")
	driverIs(true)
	require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "is installed again") }, time.Minute, time.Millisecond)
	require.Contains(t, stderr.String(), "/volumes/flexlvm.io~flexlvm/pvc-1")
	mounts("")
	driverIs(false)
	cancel()
	require.NoError(t, <-ended)
}
