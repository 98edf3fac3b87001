package mount

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrCannotTrim: the device below the file system does not accept discards.
var ErrCannotTrim = errors.New("the device takes no discards")

// trimRange is struct fstrim_range (linux/fs.h).
type trimRange struct {
	start, length, minLen uint64
}

const fiTrim = 0xc0185879 // FITRIM

// Trim discards the free space in a range of the file system, and returns its size. The range must
// begin within the file system.
//
// Before Linux 6.10, XFS discards a free extent that begins or ends in the range as a whole, and
// Trim then returns more than length.
func (a *Attached) Trim(at, length volume.Bytes) (volume.Bytes, error) {
	r := trimRange{start: uint64(at), length: uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, a.root.Fd(), fiTrim, uintptr(unsafe.Pointer(&r)))
	if errno == unix.EOPNOTSUPP {
		return 0, fmt.Errorf("trim %s: %w", a.root.Name(), ErrCannotTrim)
	}
	if errno != 0 {
		return 0, fmt.Errorf("trim %s from byte %d: %w", a.root.Name(), int64(at), errno)
	}
	return volume.Bytes(r.length), nil
}
