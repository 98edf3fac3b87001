//go:build vm

package mount_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mount"
)

// Run as root, on any machine:
//
//	go test -tags vm ./internal/mount
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	ended := make(chan error, 1)
	go func() { ended <- mount.Watch(ctx, func() { calls.Add(1) }) }()

	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	// The watch reports nothing before it has started.
	require.Eventually(t, func() bool {
		require.NoError(t, unix.Mount("watched", dir, "tmpfs", 0, "size=4k"))
		require.NoError(t, unix.Unmount(dir, 0))
		return calls.Load() > 0
	}, time.Minute, 20*time.Millisecond)
	// Each change is reported, whatever else in this process waits for files.
	for change := range 500 {
		before := calls.Load()
		if change%2 == 0 {
			require.NoError(t, unix.Mount("watched", dir, "tmpfs", 0, "size=4k"))
		} else {
			require.NoError(t, unix.Unmount(dir, 0))
		}
		require.Eventuallyf(t, func() bool { return calls.Load() > before },
			time.Minute, time.Millisecond, "change %d was not reported", change)
	}
	select {
	case err := <-ended:
		require.FailNow(t, "the watch has ended", "%v", err)
	default:
	}
	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.FailNow(t, "the watch does not end")
	}
}
