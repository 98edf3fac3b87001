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

// AttachXFSForReaders is AttachXFS for those who only read, whatever a container
// runtime makes of the mount. That a mount is read-only a runtime takes away which
// mounts it once more as "rw", as kubelet asks for where a pod does not say readOnly
// (runc does so from 1.2 on, crun 1.8 does). What it cannot take away is a mapping of
// owners in which nobody owns what is there: the kernel lets nobody write to, make or
// remove what has no owner, root neither (inode_permission, may_create and may_delete
// in Linux's fs/namei.c). Files are read by the rights of others.
//
// Where this machine maps no owners, the mount is read-only and no more, and its
// Unmapped says why.
func AttachXFSForReaders(device string) (*Attached, error) {
	a, err := AttachXFS(device, true)
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

// Unmapped is why a mount for readers has owners that may write, for a container runtime
// can take read-only away; nil where it has none. It is an ErrNoMapping.
func (a *Attached) Unmapped() error { return a.unmapped }

// ErrNoMapping: this machine will not map owners today or tomorrow.
var ErrNoMapping = errors.New("owners cannot be mapped")

// CheckReaders reports whether AttachXFSForReaders can do more on this machine than mount
// read-only: nil, ErrNoMapping with the cause and what to do about it, or why it could
// not be found out. It mounts nothing.
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
