package mount

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenBelow opens what is at name below the root of the file system, with these flags. No
// link is followed, and nothing outside the file system is reached, whatever is in it.
func (a *Attached) OpenBelow(name string, flags int) (*os.File, error) {
	return openBelow(int(a.root.Fd()), name, flags)
}

func openBelow(dir int, name string, flags int) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK // a pipe, say, must not hold us
	}
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Below returns the directory at name, which is no link, as a mount of its own that is a in all
// else, and closes a. It needs a directory to mount on, of which nobody sees anything.
//
// The kernel makes a mount of a directory only if that is mounted where the caller is
// (before Linux 6.15), so a is mounted in a mount namespace that has one thread. It ends
// with that thread, or with the process, however that is killed.
func (a *Attached) Below(name string, on *Target) (*Attached, error) {
	type result struct {
		below *Attached
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
		below, err := a.belowInOwnNamespace(name, on.Path)
		done <- result{below, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("mount directory %s: %w", name, errors.Join(r.err, a.Close()))
	}
	r.below.unmapped = a.unmapped
	return r.below, nil
}

func (a *Attached) belowInOwnNamespace(name, on string) (below *Attached, err error) {
	host, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer func() { _ = host.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("make a mount namespace: %w", err)
	}
	// What the host unmounts meanwhile must not stay mounted here, and the namespace ends
	// even if the runtime keeps the thread.
	defer func() {
		if back := unix.Setns(int(host.Fd()), unix.CLONE_NEWNS); back != nil && below != nil {
			err = fmt.Errorf("leave the mount namespace: %w", errors.Join(back, below.Close()))
			below = nil
		}
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("keep a mount from the host: %w", err)
	}
	if err := unix.MoveMount(a.fd, "", unix.AT_FDCWD, on, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("mount the whole: %w", err)
	}
	below, err = cloneBelow(name, on)
	// What is open of it would keep it from being unmounted.
	if err = errors.Join(err, a.Close(), unix.Unmount(on, unix.UMOUNT_NOFOLLOW)); err != nil && below != nil {
		err = errors.Join(err, below.Close())
	}
	if err != nil {
		return nil, err
	}
	return below, nil
}

// cloneBelow clones the directory at name of what is mounted on a directory.
func cloneBelow(name, on string) (*Attached, error) {
	top, err := unix.Open(on, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(top) }()
	dir, err := openBelow(top, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("clone: %w", err)
	}
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Attached{fd: fd, root: os.NewFile(uintptr(root), name)}, nil
}
