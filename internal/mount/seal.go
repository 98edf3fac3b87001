package mount

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// noOwner is an id that no file and no process has. The mapping of a sealed mount
// knows this one alone.
const noOwner = 0xfffffffd

// AttachXFSForReaders is AttachXFS for those who only read, whatever a container
// runtime makes of the mount. That a mount is read-only a runtime takes away which
// mounts it once more as "rw", as kubelet asks for where a pod does not say readOnly
// (runc does so from 1.2 on, crun 1.8 does). What it cannot take away is a mapping of
// owners in which nobody owns what is there: the kernel lets nobody write to, make or
// remove what has no owner, root neither (inode_permission, may_create and may_delete
// in Linux's fs/namei.c). Files are read by the rights of others.
//
// Where the kernel has no such mappings for XFS (before 5.12), or lets nobody make one
// (user.max_user_namespaces is 0), the mount is read-only and no more.
func AttachXFSForReaders(device string) (*Attached, error) {
	a, err := AttachXFS(device, true)
	if err != nil {
		return nil, err
	}
	if err := disown(a.fd); err != nil && !errors.Is(err, ErrNoMapping) {
		return nil, fmt.Errorf("mount %s for readers: %w", device, errors.Join(err, a.Close()))
	}
	return a, nil
}

// ErrNoMapping: this machine will not map owners today or tomorrow.
var ErrNoMapping = errors.New("owners cannot be mapped")

// CheckReaders tells whether AttachXFSForReaders can do more on this machine than mount
// read-only: nil, ErrNoMapping with the kernel's reason, or why it could not be found
// out. It mounts nothing.
func CheckReaders() error {
	// The kernel reads the mapping before it looks at what is to be mounted, which is
	// nothing here (mount_setattr in Linux's fs/namespace.c).
	if err := disown(-1); !errors.Is(err, unix.EBADF) {
		return err
	}
	return nil
}

// disown gives a mount the mapping in which nobody owns anything.
func disown(mount int) error {
	owners, err := unowned()
	if err == nil {
		defer func() { _ = owners.Close() }()
		err = unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners.Fd())})
	}
	for _, never := range []error{unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.EPERM, unix.ENOSPC, unix.EUSERS} {
		if errors.Is(err, never) {
			return fmt.Errorf("%w: %w", ErrNoMapping, err)
		}
	}
	return err
}

// unowned opens a user namespace that knows noOwner alone. The kernel makes one only
// with a process: it is traced, so it stops before its first instruction, and is
// killed there.
func unowned() (*os.File, error) {
	runtime.LockOSThread() // a process is traced by the thread that started it
	defer runtime.UnlockOSThread()
	one := []syscall.SysProcIDMap{{ContainerID: noOwner, HostID: noOwner, Size: 1}}
	process, err := os.StartProcess("/proc/self/exe", []string{"flexlvm-mapping"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one, GidMappings: one, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("make a mapping of owners: %w", err)
	}
	owners, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", process.Pid))
	err = errors.Join(err, process.Kill())
	if _, waited := process.Wait(); waited != nil || err != nil {
		if owners != nil {
			_ = owners.Close()
		}
		return nil, fmt.Errorf("make a mapping of owners: %w", errors.Join(err, waited))
	}
	return owners, nil
}
