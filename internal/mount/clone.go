package mount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Clone creates another mount of the directory visible at path, in no mount tree. The path can be
// unmounted meanwhile; the file system then stays mounted until Close. The caller must check that
// it is the wanted one: what was mounted at path may be gone.
func Clone(path string) (*Attached, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("clone the mount at %s: %w", path, err)
	}
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open the mount at %s: %w", path, err)
	}
	return &Attached{fd: fd, root: os.NewFile(uintptr(root), path)}, nil
}

// AttachNode creates another mount of a block device's node alone, in no mount tree. path may be a
// symbolic link, and must lead to the device with this number.
func AttachNode(path string, number uint64) (*Attached, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone the device node %s: %w", path, err)
	}
	node := &Attached{fd: fd}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != number {
		return nil, errors.Join(fmt.Errorf("clone the device node %s: it does not lead to device %d:%d", path, unix.Major(number), unix.Minor(number)), err, node.Close())
	}
	return node, nil
}
