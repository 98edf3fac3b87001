package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Unmount unmounts the topmost mount at path, which is a path as At returns it. It is never forced
// or lazy: ErrBusy means that the mount is still in use.
func Unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: %w by a process; it is retried", path, ErrBusy)
	case err != nil:
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
