package mount

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenBelow opens name below the root of the file system, with these flags. It follows no link, and
// reaches nothing outside the file system, whatever that contains.
func (a *Attached) OpenBelow(name string, flags int) (*os.File, error) {
	return openBelow(int(a.root.Fd()), name, flags)
}

func openBelow(dir int, name string, flags int) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK // opening a pipe, say, must not block
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

// Subdirectory returns the directory at name, which must not be a link, as a separate mount that is
// otherwise like a, and closes a. It needs a directory to mount a on meanwhile, invisible to other
// processes.
//
// Before Linux 6.15, the kernel clones a directory as a mount only if it is mounted in the caller's
// mount namespace, so a is mounted in a mount namespace of a single thread. The namespace ends with
// that thread, or with the process, however that is killed.
func (a *Attached) Subdirectory(name string, on *Target) (*Attached, error) {
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
	// The thread leaves the namespace, which then ends even if the runtime keeps the thread: what
	// the host unmounts must not stay mounted in it.
	defer func() {
		if setnsErr := unix.Setns(int(host.Fd()), unix.CLONE_NEWNS); setnsErr != nil && below != nil {
			err = fmt.Errorf("leave the mount namespace: %w", errors.Join(setnsErr, below.Close()))
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
	// a is closed first, because its open root would keep it from being unmounted.
	if err = errors.Join(err, a.Close(), unix.Unmount(on, unix.UMOUNT_NOFOLLOW)); err != nil && below != nil {
		err = errors.Join(err, below.Close())
	}
	if err != nil {
		return nil, err
	}
	return below, nil
}

// cloneBelow clones the directory at name in what is mounted on a directory.
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
