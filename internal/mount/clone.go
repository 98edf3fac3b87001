package mount

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Clone mounts the directory that is visible at path once more, in no tree. That path can be
// unmounted meanwhile; the file system then stays mounted until Close. Whether it is the
// wanted one is for the caller to see: what was mounted at path may have gone.
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
