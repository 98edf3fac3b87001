package node

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	blkDiscard = 0x1277 // BLKDISCARD (linux/fs.h)
	blkZeroOut = 0x127f // BLKZEROOUT
	// wipeStep bounds one request, so that a deadline is noticed.
	wipeStep = 256 * volume.MiB
)

// wipe overwrites or discards the content of a doomed volume's device. The device is opened exclusively: a mounted one
// is refused by the kernel. Repeating it is harmless.
func wipe(ctx context.Context, path string, w volume.Wipe) error {
	request := uintptr(blkDiscard)
	if w == volume.WipeZero {
		request = blkZeroOut
	}
	size, err := deviceSize(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("wipe %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	for at := volume.Bytes(0); at < size; at += wipeStep {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wipe %s: stopped at byte %d: %w", path, int64(at), err)
		}
		span := [2]uint64{uint64(at), uint64(min(wipeStep, size-at))}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&span)))
		if errno == unix.EOPNOTSUPP && w == volume.WipeDiscard {
			return nil // a disk that cannot trim has nothing to be told
		}
		if errno != 0 {
			return fmt.Errorf("wipe %s at byte %d: %w", path, int64(at), errno)
		}
	}
	return nil
}
