package xfs

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// fsGeometry is struct xfs_fsop_geom_v1 (fs/xfs/libxfs/xfs_fs.h), the oldest form,
// which every kernel still answers.
type fsGeometry struct {
	blockSize  uint32
	_          uint32    // realtime extent size
	groupSize  uint32    // of an allocation group, in blocks
	_          [4]uint32 // allocation groups; log blocks; sector and inode size
	maxPercent uint32
	dataBlocks uint64
	_          [3]uint64 // realtime blocks, extents; log start
	_          [16]byte  // uuid
	_          [7]uint32 // stripe unit, width; version; flags; log and realtime sector size; directory block size
	_          uint32
}

// counts is struct xfs_fsop_counts.
type counts struct {
	freeData uint64
	_        uint64
	_        uint64
	_        uint64
}

// growData is struct xfs_growfs_data.
type growData struct {
	blocks     uint64
	maxPercent uint32
	_          uint32
}

const (
	ioctlGeometry = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	ioctlCounts   = 0x80205871 // XFS_IOC_FSCOUNTS
	ioctlGrow     = 0x4010586e // XFS_IOC_FSGROWFSDATA
)

// A Space is the size of a mounted file system and how much of it is free for data,
// regardless of quotas.
type Space struct {
	Size volume.Bytes
	Free volume.Bytes
}

// ReadSpace returns the space of the file system that contains the directory root.
func ReadSpace(root *os.File) (Space, error) {
	g, err := readFSGeometry(root)
	if err != nil {
		return Space{}, err
	}
	var c counts
	if err := ioctl(root, ioctlCounts, unsafe.Pointer(&c)); err != nil {
		return Space{}, fmt.Errorf("read free space of %s: %w", root.Name(), err)
	}
	block := volume.Bytes(g.blockSize)
	return Space{Size: volume.Bytes(g.dataBlocks) * block, Free: volume.Bytes(c.freeData) * block}, nil
}

// Grow grows the mounted file system to fill a device of the given size, and lets inodes take at
// least that percentage of it (volume.InodePercent). It is idempotent, and never shrinks. If the
// file system already fills the device, its copies of the superblock are written again: XFS does
// not log them, so a power cut may have left the old ones, which xfs_repair would use.
func Grow(root *os.File, device volume.Bytes, inodePercent int) error {
	g, err := readFSGeometry(root)
	if err != nil {
		return err
	}
	d := g.grown(device, inodePercent)
	if d.blocks < g.dataBlocks {
		return nil
	}
	if err := ioctl(root, ioctlGrow, unsafe.Pointer(&d)); err != nil {
		return fmt.Errorf("grow file system of %s to %d bytes: %w", root.Name(), int64(device), err)
	}
	return nil
}

// grown returns the request to the kernel. With a percentage of 0, inodes may take all of the file
// system.
func (g fsGeometry) grown(device volume.Bytes, inodePercent int) growData {
	d := growData{blocks: uint64(device) / uint64(g.blockSize), maxPercent: g.maxPercent}
	if g.maxPercent > 0 {
		d.maxPercent = max(g.maxPercent, uint32(inodePercent))
	}
	return d
}

func readFSGeometry(root *os.File) (g fsGeometry, err error) {
	if err := ioctl(root, ioctlGeometry, unsafe.Pointer(&g)); err != nil {
		return fsGeometry{}, fmt.Errorf("read geometry of %s: %w", root.Name(), err)
	}
	return g, nil
}

// A Geometry holds the size of a mounted file system and of its allocation groups. No free extent
// reaches beyond its group.
type Geometry struct {
	Size, AllocationGroup volume.Bytes
}

// ReadGeometry returns the geometry of the file system that contains root.
func ReadGeometry(root *os.File) (Geometry, error) {
	g, err := readFSGeometry(root)
	if err != nil {
		return Geometry{}, err
	}
	block := volume.Bytes(g.blockSize)
	return Geometry{Size: volume.Bytes(g.dataBlocks) * block, AllocationGroup: volume.Bytes(g.groupSize) * block}, nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
