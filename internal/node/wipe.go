package node

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Wipe is what happens to a volume's content before its extents go back to the
// group. The content never reaches another volume's users in any case: XFS does
// not show blocks that were not written.
type Wipe string

// The ways to wipe.
const (
	WipeNone    Wipe = "none"
	WipeDiscard Wipe = "discard" // tell the disk that the blocks are free
	WipeZero    Wipe = "zero"    // overwrite with zeros
)

// ParseWipe checks a way to wipe; empty means WipeNone. The error is a
// *volume.FieldError.
func ParseWipe(field, s string) (Wipe, error) {
	switch w := Wipe(s); w {
	case "":
		return WipeNone, nil
	case WipeNone, WipeDiscard, WipeZero:
		return w, nil
	}
	return "", &volume.FieldError{Field: field, Value: s, Reason: "is not a way to wipe; it is none, discard or zero"}
}

const (
	blkDiscard = 0x1277 // BLKDISCARD (linux/fs.h)
	blkZeroOut = 0x127f // BLKZEROOUT
	// wipeStep bounds one request, so that a deadline is noticed.
	wipeStep = 256 * volume.MiB
)

// device wipes a doomed volume. The device is opened exclusively: a mounted one
// is refused by the kernel. Repeating it is harmless.
func (w Wipe) device(ctx context.Context, path string) error {
	request := uintptr(blkDiscard)
	if w == WipeZero {
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
		if errno == unix.EOPNOTSUPP && w == WipeDiscard {
			return nil // a disk that cannot trim has nothing to be told
		}
		if errno != 0 {
			return fmt.Errorf("wipe %s at byte %d: %w", path, int64(at), errno)
		}
	}
	return nil
}
