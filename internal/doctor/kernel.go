package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mount"
)

// Kernel is the doctor's direct access to the running kernel.
type Kernel interface {
	Release() (string, error) // as uname -r
	Root() bool               // whether this process is root
	// OpenXFS opens an XFS context of the kernel's mount API, which loads the module if there is one.
	OpenXFS() error
	// MapOwners checks whether the kernel can hide the owners of a mount's files. It returns nil,
	// mount.ErrNoMapping, or the error with which this could not be determined.
	MapOwners() error
}

// Running is the kernel of this machine.
type Running struct{}

// Release implements Kernel.
func (Running) Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// Root implements Kernel.
func (Running) Root() bool { return os.Geteuid() == 0 }

// OpenXFS implements Kernel.
func (Running) OpenXFS() error {
	fd, err := unix.Fsopen("xfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// MapOwners implements Kernel.
func (Running) MapOwners() error { return mount.CheckReaders() }

func (d *Doctor) path(name string) string { return filepath.Join("/", d.host.Root, name) }

func (d *Doctor) checkUser(context.Context) []Finding {
	if !d.host.Kernel.Root() {
		return fail("user", "not running as root, so most of the following cannot be checked", "run it as root")
	}
	return nil
}

// The driver mounts with fsopen, fsmount and move_mount, which exist from 5.2 on and work as required from 5.6
// on.
const needMajor, needMinor = 5, 6

func (d *Doctor) checkKernel(context.Context) []Finding {
	const check = "kernel"
	release, err := d.host.Kernel.Release()
	if err != nil {
		return fail(check, err.Error(), "")
	}
	major, minor, err := parseRelease(release)
	if err != nil {
		return warn(check, err.Error(), fmt.Sprintf("make sure that it is %d.%d or later", needMajor, needMinor))
	}
	if major < needMajor || major == needMajor && minor < needMinor {
		return fail(check, fmt.Sprintf("Linux %s lacks the mount calls that are used", release), fmt.Sprintf("use Linux %d.%d or later", needMajor, needMinor))
	}
	return ok(check, "Linux "+release)
}

// parseRelease returns the first two numbers of a release such as 6.1.0-18-amd64.
func parseRelease(release string) (major, minor int, err error) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0, fmt.Errorf("the kernel's release %q is not a version", release)
	}
	digits := strings.IndexFunc(parts[1], func(c rune) bool { return c < '0' || c > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1][:digits])
	if err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("the kernel's release %q is not a version", release)
	}
	return major, minor, nil
}

func (d *Doctor) checkDeviceMapper(context.Context) []Finding {
	const check = "device-mapper"
	misc, err := os.ReadFile(d.path("proc/misc"))
	if err != nil {
		return fail(check, err.Error(), "mount /proc")
	}
	for _, line := range strings.Split(string(misc), "\n") {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "device-mapper" {
			return ok(check, "the kernel has it, and with it the targets linear and striped")
		}
	}
	return fail(check, "the kernel has no device mapper, which LVM needs", "run `modprobe dm_mod`, and have it loaded at boot; if there is no such module, use a kernel that has it (CONFIG_BLK_DEV_DM)")
}

func (d *Doctor) checkXFS(context.Context) []Finding {
	const check = "xfs"
	if err := d.host.Kernel.OpenXFS(); err != nil {
		switch {
		case errors.Is(err, unix.ENODEV):
			return fail(check, "the kernel has no XFS", "install the kernel's module xfs (on some distributions in a package of extra modules)")
		case errors.Is(err, unix.EPERM):
			return warn(check, "cannot ask the kernel for XFS: "+err.Error(), "run it as root, with CAP_SYS_ADMIN")
		}
		return fail(check, "cannot ask the kernel for XFS: "+err.Error(), fmt.Sprintf("use Linux %d.%d or later", needMajor, needMinor))
	}
	// The module is loaded at this point, and creates this file only if it supports quota (fs/xfs/xfs_stats.c:
	// xfs_init_procfs).
	if _, err := os.Stat(d.path("proc/fs/xfs/xqmstat")); err != nil {
		return fail(check, "the kernel's XFS has no quota", "without it a volume cannot have its exact size; use a kernel with CONFIG_XFS_QUOTA")
	}
	return ok(check, "the kernel has XFS with quota")
}

// checkReaders checks the mapping of owners. Without it, volumes work normally, but only the container runtime
// keeps consumers of datasets from writing. The error has the cause and what to do.
func (d *Doctor) checkReaders(context.Context) []Finding {
	const check = "readers"
	err := d.host.Kernel.MapOwners()
	switch {
	case err == nil:
		return ok(check, "the kernel keeps consumers from writing to datasets")
	case errors.Is(err, mount.ErrNoMapping):
		return warn(check, "only the container runtime keeps consumers from writing to datasets: "+err.Error(),
			"correct that; until then have every consumer of a dataset say readOnly: true")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return fail(check, "no dataset can be mounted for consumers: "+err.Error(), "find out whose processes hold user namespaces (`lsns -t user`)")
	}
	return warn(check, "cannot find out whether the kernel keeps consumers from writing to datasets: "+err.Error(), "run it as root, with CAP_SYS_ADMIN")
}
