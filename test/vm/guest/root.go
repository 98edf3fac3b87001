//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newRoot is where the root file system is mounted while the initrd is still the root.
const newRoot = "/newroot"

// mount is one call of mount(2). It creates a missing target.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

// mountRoot mounts the root disk, or a throw-away layer in memory on top of it,
// which lets any number of guests share one read-only image.
func mountRoot(writable bool) error {
	disk, err := rootDisk()
	if err != nil {
		return err
	}
	if writable {
		return mount{disk, newRoot, "ext4", 0, ""}.do()
	}
	if err := (mount{disk, "/base", "ext4", unix.MS_RDONLY, ""}).do(); err != nil {
		return err
	}
	if err := (mount{"layer", "/layer", "tmpfs", 0, "mode=0755"}).do(); err != nil {
		return err
	}
	for _, dir := range []string{"/layer/upper", "/layer/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return mount{"overlay", newRoot, "overlay", 0, "lowerdir=/base,upperdir=/layer/upper,workdir=/layer/work"}.do()
}

// enterRoot makes the mounted root file system the root of this process and, because they share it, of the kernel
// threads that start modprobe.
func enterRoot() error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := (mount{dir, newRoot + dir, "", unix.MS_MOVE, ""}).do(); err != nil {
			return err
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := (mount{".", "/", "", unix.MS_MOVE, ""}).do(); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// furnish sets up the mounts, links and names that programs expect of a running system.
func furnish() error {
	for _, m := range []mount{
		{"devpts", "/dev/pts", "devpts", 0, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		// As systemd does, and as kubelet expects.
		{"", "/", "", unix.MS_SHARED | unix.MS_REC, ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/run/lvm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("node")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return loopbackUp()
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}
