package quota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attributes are what the owner of a directory can set on its inode besides the mode (chattr(1),
// xfs_io(8)). Files created in the directory inherit most of it. All are zero if the file system
// has none.
type Attributes struct {
	Flags           uint32  `json:"flags,omitempty"`         // of FS_IOC_GETFLAGS, within ownerFlags
	ExtendedFlags   uint32  `json:"extendedFlags,omitempty"` // of FS_IOC_FSGETXATTR, within ownerExtendedFlags
	ExtentSize      uint32  `json:"extentSize,omitempty"`    // a hint, in bytes
	CopyOnWriteSize uint32  `json:"copyOnWriteSize,omitempty"`
	Project         Project `json:"project,omitempty"`
}

// The flags in Attributes (linux/fs.h). Immutable and append-only are excluded, because owners
// cannot set these, and so is what the file system sets itself.
const (
	// FS_SECRM_FL, FS_UNRM_FL, FS_COMPR_FL, FS_SYNC_FL, FS_NODUMP_FL, FS_NOATIME_FL,
	// FS_JOURNAL_DATA_FL, FS_NOTAIL_FL, FS_DIRSYNC_FL and FS_TOPDIR_FL. FS_CASEFOLD_FL is missing:
	// it can be cleared only in a directory without any entry, even lost+found.
	ownerFlags = 0x0003c0cf
	// FS_XFLAG_RTINHERIT up to FS_XFLAG_COWEXTSIZE, with FS_XFLAG_PROJINHERIT.
	ownerExtendedFlags = 0x0001ff00
)

// String formats the attributes for messages.
func (a Attributes) String() string {
	return fmt.Sprintf("flags %#x, extended flags %#x, extent size hints %d and %d, and project %d", a.Flags, a.ExtendedFlags, a.ExtentSize, a.CopyOnWriteSize, a.Project)
}

// AttributesOf returns the attributes of a directory.
func AttributesOf(dir *os.File) (Attributes, error) {
	var flags uint32
	var x fsXAttr
	if err := errors.Join(
		unlessUnsupported(ioctl(dir, unix.FS_IOC_GETFLAGS, unsafe.Pointer(&flags))),
		unlessUnsupported(ioctl(dir, fsGetXAttr, unsafe.Pointer(&x))),
	); err != nil {
		return Attributes{}, fmt.Errorf("read the attributes of %s: %w", dir.Name(), err)
	}
	return Attributes{
		Flags: flags & ownerFlags, ExtendedFlags: x.flags & ownerExtendedFlags,
		ExtentSize: x.extentSize, CopyOnWriteSize: x.cowExtent, Project: x.project,
	}, nil
}

func unlessUnsupported(err error) error {
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// SetAttributes sets the attributes of a directory. It writes only what differs.
func SetAttributes(dir *os.File, a Attributes) error {
	was, err := AttributesOf(dir)
	if err != nil {
		return err
	}
	if was.Flags != a.Flags {
		if err := setFlags(dir, a.Flags); err != nil {
			return fmt.Errorf("change the flags of %s: %w", dir.Name(), err)
		}
	}
	if was.Flags = a.Flags; was == a {
		return nil
	}
	return change(dir, func(x *fsXAttr) {
		x.flags = x.flags&^ownerExtendedFlags | a.ExtendedFlags
		x.extentSize, x.cowExtent, x.project = a.ExtentSize, a.CopyOnWriteSize, a.Project
	})
}

func setFlags(dir *os.File, to uint32) error {
	var flags uint32
	if err := ioctl(dir, unix.FS_IOC_GETFLAGS, unsafe.Pointer(&flags)); err != nil {
		return err
	}
	flags = flags&^ownerFlags | to
	return ioctl(dir, unix.FS_IOC_SETFLAGS, unsafe.Pointer(&flags))
}

// LeaveProject is Disown without clearing the directory's protection, so it fails for an immutable
// directory.
func LeaveProject(dir *os.File) error { return SetProject(dir, Attributes{}) }

// SetProject sets the project of a directory, and whether new files inherit it, to those of like. It leaves the other
// attributes unchanged.
func SetProject(dir *os.File, like Attributes) error {
	a, err := AttributesOf(dir)
	if err != nil {
		return err
	}
	a.Project = like.Project
	a.ExtendedFlags = a.ExtendedFlags&^projectInherit | like.ExtendedFlags&projectInherit
	return SetAttributes(dir, a)
}
