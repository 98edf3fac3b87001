package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// noOwner is an ID that no file and no process has. The mapping of a sealed mount contains only
// this one.
const noOwner = 0xfffffffd

// AttachForReaders is Attach for a mount that stays read-only whatever a container runtime does to
// it. A runtime can drop the read-only flag by remounting "rw", as the kubelet requests if a pod
// does not set readOnly (runc since 1.2 and crun 1.8 do). It cannot drop an ID mapping in which no
// file has an owner: with it, nobody, not even root, can write, create or remove files
// (inode_permission, may_create and may_delete in Linux's fs/namei.c). Files are readable by the
// permissions for others.
//
// If this machine cannot map owners, the mount is only flagged read-only, and Unmapped returns the
// reason. The mapping also keeps programs from running as their owners (setuid), so the mount is
// nosuid in case there is none.
func AttachForReaders(t Type, device string) (*Attached, error) {
	a, err := attach(t, device, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_RDONLY, t.options)
	if err != nil {
		return nil, err
	}
	err = setEmptyIDMapping(a.fd)
	switch {
	case errors.Is(err, ErrNoMapping):
		a.unmapped = err
	case err != nil:
		return nil, fmt.Errorf("mount %s for readers: %w", device, errors.Join(err, a.Close()))
	}
	return a, nil
}

// Unmapped returns why owners are not mapped in a mount for readers, so that a container runtime
// can make it writable; nil if they are mapped. The error is an ErrNoMapping.
func (a *Attached) Unmapped() error { return a.unmapped }

// ErrNoMapping: this machine cannot map owners; a retry does not help.
var ErrNoMapping = errors.New("owners cannot be mapped")

// CheckReaders checks whether AttachForReaders can map owners on this machine. It returns nil,
// ErrNoMapping with the cause and the remedy, or the error that kept it from finding out. It mounts
// nothing.
func CheckReaders() error {
	// The kernel checks the mapping before it checks the mount, which is none here (mount_setattr
	// in Linux's fs/namespace.c).
	if err := setEmptyIDMapping(-1); !errors.Is(err, unix.EBADF) {
		return err
	}
	return nil
}

// setEmptyIDMapping sets on a mount the ID mapping in which nobody owns anything.
func setEmptyIDMapping(mount int) error {
	owners, err := openEmptyUserNamespace()
	if err != nil {
		return err
	}
	defer func() { _ = owners.Close() }()
	err = unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners.Fd())})
	return explain("map the owners of a mount", err, map[syscall.Errno]string{
		unix.ENOSYS:     "the kernel has no idmapped mounts; use Linux 5.12 or later",
		unix.EINVAL:     "the kernel's XFS has no idmapped mounts; use Linux 5.12 or later",
		unix.EOPNOTSUPP: "the kernel's XFS has no idmapped mounts; use Linux 5.12 or later",
	})
}

// explain turns an error that a retry would repeat into an ErrNoMapping, and adds the cause,
// because the kernel's error is of no help ("no space left on device").
func explain(what string, err error, causes map[syscall.Errno]string) error {
	if err == nil {
		return nil
	}
	var errno syscall.Errno
	_ = errors.As(err, &errno)
	cause := causes[errno]
	if cause == "" && (errno == unix.EPERM || errno == unix.EACCES) {
		cause = "this process is not root on the host, or a security module or a sandbox such as seccomp forbids it; see the kernel's log"
	}
	if cause == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s: %w: %s", ErrNoMapping, what, err, cause)
}

// openEmptyUserNamespace opens a user namespace that maps only noOwner.
func openEmptyUserNamespace() (*os.File, error) {
	process, err := startHolder()
	if err != nil {
		return nil, explainNoNamespace(err, readSysctl("user/max_user_namespaces"))
	}
	owners, err := mapNoOwner(process)
	if releaseErr := process.release(); releaseErr != nil {
		if err == nil {
			_ = owners.Close()
		}
		return nil, errors.Join(err, releaseErr)
	}
	return owners, err
}

// explainNoNamespace explains why no user namespace could be created; limit is the sysctl
// user.max_user_namespaces. If that is 0, root has decided so, and a retry does not help. Otherwise
// the limit is used up, which pods can achieve. That is no ErrNoMapping, because they must not be
// able to make the following mounts writable.
func explainNoNamespace(err error, limit string) error {
	const what = "make a user namespace"
	if limit != "0" && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EUSERS)) {
		return fmt.Errorf("%s: %w: they are used up (user.max_user_namespaces is %s), and it is retried; end processes that hold some (`lsns -t user`), or raise the limit", what, err, limit)
	}
	const off = "user.max_user_namespaces is 0; let root make more"
	return explain(what, err, map[syscall.Errno]string{
		unix.ENOSPC: off, unix.EUSERS: off,
		unix.EINVAL: "the kernel has no user namespaces; use one with CONFIG_USER_NS",
		unix.ENOSYS: "the kernel has no clone3, or a sandbox such as seccomp hides it; use Linux 5.12 or later",
	})
}

// mapNoOwner maps noOwner in the user namespace of process, and opens that namespace.
func mapNoOwner(process userNamespaceHolder) (*os.File, error) {
	one := fmt.Appendf(nil, "%d %[1]d 1\n", uint32(noOwner))
	for _, ids := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(process.file(ids), one, 0); err != nil {
			return nil, explain("fill a user namespace", err, nil)
		}
	}
	owners, err := os.Open(process.file("ns/user"))
	if err != nil {
		return nil, explain("open a user namespace", err, nil)
	}
	return owners, nil
}

// readSysctl reads a sysctl.
func readSysctl(path string) string {
	value, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		return "not known"
	}
	return strings.TrimSpace(string(value))
}
