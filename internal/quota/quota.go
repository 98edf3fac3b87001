// Package quota limits what a volume may hold, by one project to which everything in the volume
// belongs. It uses the calls that XFS and ext4 have in common.
package quota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Project is the ID of a project. Project 0 is never limited.
type Project uint32

// project is the only project of a volume with its own file system.
const project Project = 1

// A Limit holds a project's hard limits; 0 means none.
type Limit struct {
	Size   volume.Bytes
	Inodes int64
}

// fsXAttr is struct fsxattr (linux/fs.h).
type fsXAttr struct {
	flags      uint32
	extentSize uint32
	extents    uint32
	project    Project
	cowExtent  uint32
	_          [8]byte
}

const (
	fsGetXAttr     = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXAttr     = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x00000200 // FS_XFLAG_PROJINHERIT
)

// EnsureProject assigns the project to root, the root directory of a volume, so that everything
// created below inherits it; without that, nothing is counted. It writes only if something is
// missing: a tenant who is root in the container may have cleared it.
func EnsureProject(root *os.File) error { return EnsureProjectOf(root, project) }

// EnsureProjectOf is EnsureProject for another project, on a directory of a file system that
// several volumes share.
func EnsureProjectOf(root *os.File, p Project) error {
	if err := assign(root, p, true); err != nil {
		return fmt.Errorf("set project of %s: %w", root.Name(), err)
	}
	return nil
}

// assign assigns the project to a file; new content of a directory then inherits it.
func assign(f *os.File, project Project, dir bool) error {
	var a fsXAttr
	if err := ioctl(f, fsGetXAttr, unsafe.Pointer(&a)); err != nil {
		return err
	}
	flags := a.flags
	if dir {
		flags |= projectInherit
	}
	if a.project == project && a.flags == flags {
		return nil
	}
	a.project, a.flags = project, flags
	return ioctl(f, fsSetXAttr, unsafe.Pointer(&a))
}

// diskQuota is struct fs_disk_quota (linux/dqblk_xfs.h). Blocks here are basic
// blocks of 512 bytes.
type diskQuota struct {
	version      int8
	flags        int8
	fields       uint16
	id           Project
	blockHard    uint64
	blockSoft    uint64
	inodeHard    uint64
	inodeSoft    uint64
	blockCount   uint64
	inodeCount   uint64
	inodeTimer   int32
	blockTimer   int32
	inodeWarns   uint16
	blockWarns   uint16
	_            int32
	rtBlockHard  uint64
	rtBlockSoft  uint64
	rtBlockCount uint64
	rtBlockTimer int32
	rtBlockWarns uint16
	_            int16
	_            [8]byte
}

const (
	basicBlock      = 512
	quotaVersion    = 1      // FS_DQUOT_VERSION
	quotaInodeHard  = 1 << 1 // FS_DQ_IHARD
	quotaBlockHard  = 1 << 3 // FS_DQ_BHARD
	quotaOfProject  = 2      // XQM_PRJQUOTA
	flagProject     = 1 << 1 // FS_PROJ_QUOTA
	quotaGet        = 'X'<<8 | 3
	quotaSet        = 'X'<<8 | 4
	quotaState      = 'X'<<8 | 8
	quotaNext       = 'X'<<8 | 9
	quotaStateOne   = 1      // FS_QSTATV_VERSION1
	enforcedProject = 1 << 5 // FS_QUOTA_PDQ_ENFD
)

// quotaStatus is struct fs_quota_statv (linux/dqblk_xfs.h).
type quotaStatus struct {
	version int8
	_       uint8
	flags   uint16
	_       uint32
	_       [3][3]uint64
	_       [3]int32
	_       [2]uint16
	_       [2]uint16
	_       [7]uint64
}

// Usage is what the project uses and its limits.
type Usage struct {
	Limit  Limit
	Used   volume.Bytes
	Inodes int64 // in use
}

// Read returns the project's limits and usage on the mounted device.
func Read(device string) (Usage, error) { return ReadOf(device, project) }

// ReadOf is Read for another project.
func ReadOf(device string, p Project) (Usage, error) {
	var q diskQuota
	err := quotactl(quotaGet, device, p, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return Usage{}, nil // nothing was ever counted or limited for the project
	}
	if err != nil {
		return Usage{}, fmt.Errorf("read quota of %s: %w", device, err)
	}
	return q.usage(), nil
}

func (q diskQuota) usage() Usage {
	return Usage{
		Limit:  Limit{Size: volume.Bytes(q.blockHard) * basicBlock, Inodes: int64(q.inodeHard)},
		Used:   volume.Bytes(q.blockCount) * basicBlock,
		Inodes: int64(q.inodeCount),
	}
}

// Projects returns all projects of the mounted device that have limits or usage, including project
// 0.
func Projects(device string) (map[Project]Usage, error) {
	all := map[Project]Usage{}
	for next := Project(0); ; {
		var q diskQuota
		err := quotactl(quotaNext, device, next, unsafe.Pointer(&q))
		if errors.Is(err, unix.ENOENT) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the quotas of %s: %w", device, err)
		}
		if u := q.usage(); u != (Usage{}) {
			all[q.id] = u
		}
		if next = q.id + 1; next == 0 {
			return all, nil
		}
	}
}

// Set sets the hard limits on the mounted device.
func Set(device string, l Limit) error { return SetOf(device, project, l) }

// SetOf is Set for another project.
func SetOf(device string, p Project, l Limit) error {
	q := diskQuota{
		version:   quotaVersion,
		flags:     flagProject,
		fields:    quotaBlockHard | quotaInodeHard,
		id:        p,
		blockHard: uint64(l.Size.RoundUp(volume.Block) / basicBlock),
		inodeHard: uint64(l.Inodes),
	}
	if err := quotactl(quotaSet, device, p, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("set quota of %s: %w", device, err)
	}
	return nil
}

// CheckEnforced fails unless the kernel enforces project quota on the mounted device. It does not
// if the device was first mounted without prjquota: the option takes effect only on the first
// mount.
func CheckEnforced(device string) error {
	enforced, err := Enforced(device)
	if err == nil && !enforced {
		return fmt.Errorf("project quota is not enforced on %s: it is mounted elsewhere without prjquota; unmount it there", device)
	}
	return err
}

// Enforced reports whether the kernel enforces project quota on the mounted device.
func Enforced(device string) (bool, error) {
	s := quotaStatus{version: quotaStateOne}
	err := quotactl(quotaState, device, 0, unsafe.Pointer(&s))
	if errors.Is(err, unix.ENOSYS) { // reported for a mount without any quota
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read quota state of %s: %w", device, err)
	}
	return s.flags&enforcedProject != 0, nil
}

func quotactl(cmd int, device string, id Project, arg unsafe.Pointer) error {
	special, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, uintptr(cmd<<8|quotaOfProject), uintptr(unsafe.Pointer(special)), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
