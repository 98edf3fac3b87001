package mount

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed after every mount or unmount in this mount namespace, until ctx
// ends. One call may cover several changes.
func Watch(ctx context.Context, changed func()) error {
	// Not os.Open, which also adds the file to the runtime's poller: the kernel reports a change
	// once for each open file, and the runtime would consume some of the reports.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch mounts: %w", err)
	}
	defer func() { _ = unix.Close(table) }()
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
	fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
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
