package discovery

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A spot is one directory as the kernel knows it. What is mounted there later, or is made
// there under the same name, is another.
type spot struct{ mount, inode uint64 }

// statxMountUnique asks for a mount ID that the kernel never uses again (Linux 6.8).
const statxMountUnique = 0x4000

// spotOf looks at an open directory, or with a path at what lies there.
func spotOf(fd int, path string) (spot, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_MNT_ID|statxMountUnique, &st); err != nil {
		return spot{}, fmt.Errorf("ask for its mount: %w", err)
	}
	if st.Mask&(unix.STATX_MNT_ID|statxMountUnique) == 0 {
		return spot{}, errors.New("the kernel does not say which mount it is; it takes Linux 5.8")
	}
	return spot{mount: st.Mnt_id, inode: st.Ino}, nil
}
