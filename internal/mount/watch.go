package mount

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed whenever something was mounted or unmounted in this mount
// namespace, until ctx ends. Several changes may make one call.
func Watch(ctx context.Context, changed func()) error {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("watch mounts: %w", err)
	}
	defer func() { _ = table.Close() }()
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch mounts: %w", err)
	}
	end := os.NewFile(uintptr(wake), "the end of the watch")
	defer func() { _ = end.Close() }()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_, _ = end.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended // before end is closed
		}
	}()
	// The kernel tells each reader once of every change (proc(5)).
	fds := []unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch mounts: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if fds[0].Revents&unix.POLLPRI != 0 {
			changed()
		}
	}
}
