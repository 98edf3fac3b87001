package ext4

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const ioctlResize = 0x40086610 // EXT4_IOC_RESIZE_FS

// Grow grows the mounted file system, which has the size in its superblock, to fill a device of the
// given size, as resize2fs does with a mounted file system. It is idempotent, and never shrinks.
// The kernel refuses to grow a file system in which it has recorded errors, and requires
// CAP_SYS_RESOURCE.
func Grow(root *os.File, sb Superblock, device volume.Bytes) error {
	blocks := uint64(device / volume.Block)
	if volume.Bytes(blocks)*volume.Block <= sb.Size {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), ioctlResize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("grow file system of %s to %d bytes: %w; see the kernel's log", root.Name(), int64(device), errno)
	}
	return nil
}

// Free returns how much room for data the file system that contains root has, if its quota has no
// limit.
func Free(root *os.File) (volume.Bytes, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", root.Name(), err)
	}
	return volume.Bytes(st.Bavail) * volume.Bytes(st.Bsize), nil
}
