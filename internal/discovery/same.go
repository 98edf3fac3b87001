package discovery

import (
	"errors"
	"fmt"
	"strings"

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

// Overlap reports whether two disks, as Found.Disk has them, are the same, or one is a part
// of the other.
func Overlap(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if a == b || PartitionOf(a, b) || PartitionOf(b, a) {
		return true
	}
	one, oneRoot, oneIs := filesystemOf(a)
	other, otherRoot, otherIs := filesystemOf(b)
	return oneIs && otherIs && one == other && (Within(oneRoot, otherRoot) || Within(otherRoot, oneRoot))
}

// PartitionOf reports whether one disk is a partition of another.
func PartitionOf(part, whole string) bool {
	number, there := strings.CutPrefix(part, whole+"-part")
	return there && whole != "" && number != "" && strings.Trim(number, "0123456789") == ""
}

// filesystemOf takes Found.Disk of a file system, or of a directory of one, apart.
func filesystemOf(disk string) (uuid, root string, is bool) {
	rest, is := strings.CutPrefix(disk, "fs-")
	uuid, root, part := strings.Cut(rest, ":")
	if !part {
		root = "/"
	}
	return uuid, root, is
}

// nameOf is Found.Disk of a file system, or of a directory of one.
func nameOf(uuid, root string) string {
	if root == "/" {
		return "fs-" + uuid
	}
	return "fs-" + uuid + ":" + root
}
