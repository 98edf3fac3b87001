// Package mount mounts and unmounts file systems with the kernel's own mount calls; it
// runs no program.
//
// It uses the mount API of Linux 5.2 (fsopen, fsmount, move_mount): a file system is
// first attached to a descriptor, set up there, and moved onto its target as the last
// step. A call that dies before that leaves nothing mounted.
package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrBusy: the device or the mount is in use.
var ErrBusy = errors.New("in use")

// Attached is a mounted file system that is not in any mount tree. Close unmounts it unless MoveTo
// has moved it onto a target.
type Attached struct {
	fd       int
	root     *os.File
	unmapped error
}

// A Type is a kind of file system, by the kernel's name, and how volumes of it are mounted.
type Type struct {
	name    string
	options map[string]string // an empty value is a flag
	// twin are the options that allow a second file system with the same UUID to be mounted.
	twin map[string]string
	// needs is what a kernel that refuses the mount may lack.
	needs string
}

// XFS is mounted with project quota.
var XFS = Type{
	name:    "xfs",
	options: map[string]string{"prjquota": ""},
	twin:    map[string]string{"nouuid": ""},
}

// Ext4 is mounted with project quota, and becomes read-only once the kernel detects damage. Its
// UUID makes no difference to the kernel.
var Ext4 = Type{
	name:    "ext4",
	options: map[string]string{"prjquota": "", "errors": "remount-ro"},
	needs:   "; quota on ext4 takes a kernel with CONFIG_QUOTA and CONFIG_QFMT_V2",
}

// Attach mounts the file system on device. readOnly makes this mount read-only; the file system
// itself is always writable, because a log that is dirty after a crash must be replayed. Several
// mounts of one device share one file system; options apply only to this mount.
//
// The content is a tenant's, so device nodes in it do not work on this host (nodev). Decision 009
// has the reason, and why setuid is not restricted.
func Attach(t Type, device string, readOnly bool, options ...volume.MountOption) (*Attached, error) {
	attributes := unix.MOUNT_ATTR_NODEV
	if readOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	for _, o := range options {
		flag, known := optionAttributes[o]
		if !known {
			return nil, fmt.Errorf("mount %s: option %q is not known", device, o)
		}
		attributes |= flag
	}
	return attach(t, device, attributes, t.options)
}

// optionAttributes maps mount options to the kernel's attributes.
var optionAttributes = map[volume.MountOption]int{
	volume.NoAtime:     unix.MOUNT_ATTR_NOATIME,
	volume.Relatime:    unix.MOUNT_ATTR_RELATIME,
	volume.StrictAtime: unix.MOUNT_ATTR_STRICTATIME,
	volume.NoDirAtime:  unix.MOUNT_ATTR_NODIRATIME,
	volume.NoDev:       unix.MOUNT_ATTR_NODEV,
	volume.NoExec:      unix.MOUNT_ATTR_NOEXEC,
	volume.NoSUID:      unix.MOUNT_ATTR_NOSUID,
}

// AttachCopy is like Attach, but allows another file system with the same UUID to be mounted. It
// serves only to replay the log of a copy before the copy gets its own UUID.
func AttachCopy(t Type, device string) (*Attached, error) {
	return attach(t, device, unix.MOUNT_ATTR_NODEV, t.options, t.twin)
}

func attach(t Type, device string, attributes int, options ...map[string]string) (*Attached, error) {
	ctx, err := unix.Fsopen(t.name, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount %s: open %s in the kernel: %w; load the module %[2]s (kernel 5.6 or later)", device, t.name, err)
	}
	defer func() { _ = unix.Close(ctx) }()
	if err := configure(ctx, device, options); err != nil {
		why := kernelMessages(ctx)
		if errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("mount %s: %w: %s%s", device, ErrBusy, heldBy(why), why)
		}
		return nil, fmt.Errorf("mount %s: %w%s%s", device, err, why, t.needs)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w%s", device, err, kernelMessages(ctx))
	}
	root, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("mount %s: open its root: %w", device, err)
	}
	return &Attached{fd: fd, root: os.NewFile(uintptr(root), "the root of "+device)}, nil
}

func configure(ctx int, device string, sets []map[string]string) error {
	if err := unix.FsconfigSetString(ctx, "source", device); err != nil {
		return err
	}
	for _, options := range sets {
		for name, value := range options {
			set := func() error { return unix.FsconfigSetString(ctx, name, value) }
			if value == "" {
				set = func() error { return unix.FsconfigSetFlag(ctx, name) }
			}
			if err := set(); err != nil {
				return fmt.Errorf("option %s: %w", name, err)
			}
		}
	}
	return unix.FsconfigCreate(ctx)
}

// kernelMessages returns the messages that the kernel left on the context: one per read, each preceded
// by a letter for its level and a space.
func kernelMessages(ctx int) string {
	var all []string
	buf := make([]byte, 512)
	for range 8 {
		n, err := unix.Read(ctx, buf)
		if err != nil || n <= 2 {
			break
		}
		all = append(all, strings.TrimSpace(string(buf[2:n])))
	}
	if len(all) == 0 {
		return "; see the kernel's log"
	}
	return " (" + strings.Join(all, "; ") + ")"
}

// heldBy returns what holds a device that the kernel calls busy, by the kernel's messages. LVM freezes the file system
// for a moment when it takes a snapshot. If it was frozen already (`fsfreeze`), some kernels from 6.8 to 7.2 count the
// device as frozen from then on; see package freeze.
func heldBy(messages string) string {
	if strings.Contains(messages, "blockdev is frozen") {
		return "the kernel counts the device as frozen; if that lasts, a snapshot or a copy of the volume was taken while `fsfreeze` had frozen its file system: the data is intact, but the volume can only be mounted again once the node was rebooted or its device deactivated (`lvchange --activate n GROUP/NAME`)"
	}
	return "a formatter or another program holds the device"
}

// Root returns the root directory of the file system; Close closes it.
func (a *Attached) Root() *os.File { return a.root }

// MoveTo moves the mount onto target. It is the last step of a mount, and atomic.
func (a *Attached) MoveTo(target *Target) error {
	const flags = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(a.fd, "", int(target.dir.Fd()), "", flags); err != nil {
		return fmt.Errorf("mount onto %s: %w", target.Path, err)
	}
	return nil
}

// Close releases the mount, and unmounts it unless MoveTo has moved it onto a target. It is
// idempotent.
func (a *Attached) Close() error {
	if a.fd < 0 {
		return nil
	}
	fd := a.fd
	a.fd = -1
	if a.root == nil { // a device node
		return unix.Close(fd)
	}
	return errors.Join(a.root.Close(), unix.Close(fd))
}
