package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// noOwner is an id that no file and no process has. The mapping of a sealed mount
// knows this one alone.
const noOwner = 0xfffffffd

// AttachForReaders is Attach for a mount that stays read-only whatever a container
// runtime does to it. A runtime can drop the read-only flag by remounting "rw", as
// kubelet asks if a pod does not say readOnly (runc since 1.2 and crun 1.8 do). It cannot
// drop an ID mapping in which no file has an owner: the kernel then lets nobody, not even
// root, write, create or remove files (inode_permission, may_create and may_delete in
// Linux's fs/namei.c). Files are readable by the permissions for others.
//
// If this machine cannot map owners, the mount is only flagged read-only, and Unmapped
// says why. The mapping also keeps programs from running as their owners (setuid), so
// without it the mount is nosuid.
func AttachForReaders(t Type, device string) (*Attached, error) {
	a, err := attach(t, device, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_RDONLY, t.options)
	if err != nil {
		return nil, err
	}
	err = disown(a.fd)
	switch {
	case errors.Is(err, ErrNoMapping):
		a.unmapped = err
	case err != nil:
		return nil, fmt.Errorf("mount %s for readers: %w", device, errors.Join(err, a.Close()))
	}
	return a, nil
}

// Unmapped says why owners are not mapped in a mount for readers, so that a container
// runtime can make it writable; nil if they are mapped. The error is an ErrNoMapping.
func (a *Attached) Unmapped() error { return a.unmapped }

// ErrNoMapping: this machine cannot map owners; trying again does not help.
var ErrNoMapping = errors.New("owners cannot be mapped")

// CheckReaders checks whether AttachForReaders can map owners on this machine. It
// returns nil, ErrNoMapping with the cause and what to do about it, or why it could not
// find out. It mounts nothing.
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

// explain makes an ErrNoMapping of what will be the same the next time, and says the
// cause: the kernel's words for it are of no help ("no space left on device").
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

// unowned opens a user namespace that knows noOwner alone.
func unowned() (*os.File, error) {
	process, err := hold()
	if err != nil {
		full := fmt.Sprintf("user.max_user_namespaces is %s; let root make more", setting("user/max_user_namespaces"))
		return nil, explain("make a user namespace", err, map[syscall.Errno]string{
			unix.ENOSPC: full, unix.EUSERS: full,
			unix.EINVAL: "the kernel has no user namespaces; use one with CONFIG_USER_NS",
			unix.ENOSYS: "the kernel has no clone3, or a sandbox such as seccomp hides it; use Linux 5.12 or later",
		})
	}
	owners, err := fill(process)
	if ended := process.release(); ended != nil {
		if err == nil {
			_ = owners.Close()
		}
		return nil, errors.Join(err, ended)
	}
	return owners, err
}

// fill opens the user namespace of process and lets it know noOwner.
func fill(process held) (*os.File, error) {
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

// setting reads a sysctl.
func setting(path string) string {
	value, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		return "not known"
	}
	return strings.TrimSpace(string(value))
}
