package discovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/durable"
)

// An Erasure is how a disk is cleaned.
type Erasure int

// The erasures.
const (
	KeepDevice Erasure = iota
	Zero               // it reads as zeros afterwards
	Discard            // the disk decides what it reads as, except for both ends, which are zeros
)

const (
	eraseChunk = 16 << 20 // bytes that are erased at a time, and may be erased again after a crash
	edgeSize   = 1 << 20  // bytes zeroed at each end of a discarded device, because labels are there

	blkDiscard = 0x1277 // BLKDISCARD
	blkZeroOut = 0x127f // BLKZEROOUT
	blkReread  = 0x125f // BLKRRPART
)

// errInUse: the device is mounted, or part of another one.
var errInUse = errors.New("it is in use: it is mounted, or part of another device")

// eraseDevice erases a device from byte from on. It regularly passes to progress the byte up to which the
// erasure is durable, before it erases anything behind that. The device must be the one that was
// found. It is opened exclusively, so that nobody can mount it or use it for another device
// meanwhile.
//
// The first bytes are erased last, once the rest is durable: they show that a device is not blank,
// so a partly erased device is not mistaken for an empty one.
func eraseDevice(ctx context.Context, f Found, how Erasure, from int64, limiter *rateLimiter, checkUnused checkUnusedFunc, progress func(int64) error) error {
	dev, size, err := openDevice(f, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	if err := checkUnused(); err != nil {
		return err
	}
	ioctl := eraseIoctl(how)
	var checks throttle
	for at := max(eraseChunk, from-from%eraseChunk); at < size; at += eraseChunk {
		length := min(eraseChunk, size-at)
		if err := limiter.wait(ctx, length); err != nil {
			return err
		}
		if checks.due() {
			if err := noteProgress(dev, at, checkUnused, progress); err != nil {
				return err
			}
		}
		if err := ioctlRange(dev, ioctl, at, length); err != nil {
			return err
		}
	}
	if err := eraseFirst(ctx, dev, ioctl, min(eraseChunk, size), limiter, checkUnused); err != nil {
		return err
	}
	if how == Discard {
		edge := min(edgeSize, size)
		if err := errors.Join(ioctlRange(dev, blkZeroOut, 0, edge), ioctlRange(dev, blkZeroOut, size-edge, edge)); err != nil {
			return err
		}
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	// The kernel must forget the partitions that were on the device; without any, this has no
	// effect.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, dev.Fd(), blkReread, 0)
	return nil
}

// eraseFirst erases the first bytes, once the erasure of the rest is durable.
func eraseFirst(ctx context.Context, dev *os.File, ioctl uintptr, length int64, limiter *rateLimiter, checkUnused checkUnusedFunc) error {
	if err := limiter.wait(ctx, length); err != nil {
		return err
	}
	if err := errors.Join(checkUnused(), dev.Sync()); err != nil {
		return err
	}
	return ioctlRange(dev, ioctl, 0, length)
}

// noteProgress reports the byte reached, once the erasure up to it is durable.
func noteProgress(dev *os.File, at int64, checkUnused checkUnusedFunc, progress func(int64) error) error {
	if err := checkUnused(); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	return progress(at)
}

func eraseIoctl(how Erasure) uintptr {
	if how == Discard {
		return blkDiscard
	}
	return blkZeroOut
}

// ioctlRange erases bytes of a device. The kernel drops them from its caches, too.
func ioctlRange(dev *os.File, ioctl uintptr, at, length int64) error {
	r := [2]uint64{uint64(at), uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), ioctl, uintptr(unsafe.Pointer(&r)))
	switch {
	case errno == unix.EOPNOTSUPP && ioctl == blkDiscard:
		return errors.New("it does not support discards; give its class cleanDevice: Zero")
	case errno != 0:
		return fmt.Errorf("at byte %d: %w", at, errno)
	}
	return nil
}

// openDevice opens a device exclusively, if it is still the one that was found.
func openDevice(f Found, flags int) (dev *os.File, size int64, err error) {
	dev, err = os.OpenFile(f.Path, flags|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, 0, errInUse
	}
	if err != nil {
		return nil, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dev.Fd()), &st); err != nil {
		return nil, 0, errors.Join(err, dev.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != f.Number {
		return nil, 0, errors.Join(errors.New("the device is not the one that was found"), dev.Close())
	}
	// While the device is open, its number is not reused.
	if err := kernelHost.checkSameDevice(f); err != nil {
		return nil, 0, errors.Join(err, dev.Close())
	}
	size, err = dev.Seek(0, 2)
	if err != nil || size != f.Size {
		return nil, 0, errors.Join(fmt.Errorf("it has %d bytes, but had %d when it was found", size, f.Size), err, dev.Close())
	}
	return dev, size, nil
}

// checkEmpty fails unless a file system is empty, or a device reads as zeros where checkEmpty checks it. What
// has emptied it is durable when checkEmpty returns: otherwise the next tenant could get the last one's
// data after a power cut. owner has the attributes that files created in it must inherit; nil: any.
func checkEmpty(f Found, owner *Owner) error {
	if f.Kind != Device {
		return checkEmptyDirectory(f, owner)
	}
	if err := disk.CheckZeroSamples(f.Path); err != nil {
		return err
	}
	return durable.Sync(f.Path)
}
