// Package ext4 makes, checks and grows ext4 file systems. Only Mkfs and SetUUID run
// programs, the host's own, so that the host's kernel can always mount the result.
package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/ondisk"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoFilesystem: what was read is not the superblock of a whole ext4 file system. This
// does not mean that the device is blank: only the volume's state shows whether a file
// system is missing.
var ErrNoFilesystem = errors.New("no valid ext4 superblock")

// ErrChecksum is an ErrNoFilesystem: the superblock may just be being written. The kernel
// changes that of a mounted file system in memory before it computes the checksum anew.
var ErrChecksum = fmt.Errorf("%w: its checksum is wrong", ErrNoFilesystem)

// A Superblock holds what identifies a file system, and how it is.
type Superblock struct {
	UUID string // canonical, lower case
	Size volume.Bytes
	// Errors: the kernel, or e2fsck, has noted that the file system is damaged.
	Errors bool
	// Mounts is how often it was mounted. A copy says how often it had been by the time
	// that the copy was written.
	Mounts int
	// ProjectQuota: it has the features without which no project quota is kept.
	ProjectQuota bool
	// Lavish: of whatever it grows by, it keeps more for itself than what Mkfs makes: for root,
	// or for inodes.
	Lavish bool
}

// Offsets in the superblock, all little-endian (Linux, fs/ext4/ext4.h: struct
// ext4_super_block).
const (
	offBlocks       = 0x04
	offReserved     = 0x08
	offLogBlockSize = 0x18
	offGroupBlocks  = 0x20
	offGroupInodes  = 0x28
	offMounts       = 0x34
	offMagic        = 0x38
	offState        = 0x3a
	offInodeSize    = 0x58
	offReadOnly     = 0x64 // features without which it may be read
	offUUID         = 0x68
	offBlocksHigh   = 0x150
	offReservedHigh = 0x154
	offChecksumType = 0x175
	offChecksum     = 0x3fc

	superblockSize = 1024
	primaryAt      = 1024 // on every device, behind the room for a boot sector

	magic           = 0xef53
	inodeSize       = 256
	logBlockSize    = 2 // of blocks of 4 KiB, over 1024 bytes
	stateErrors     = 2 // EXT4_ERROR_FS
	metadataSums    = 0x400
	quotaFiles      = 0x100  // EXT4_FEATURE_RO_COMPAT_QUOTA
	projects        = 0x2000 // EXT4_FEATURE_RO_COMPAT_PROJECT
	checksumTypeCRC = 1
)

// ReadSuperblock reads and checks the primary superblock. mke2fs erases what is there
// before it begins, and writes this one last, so one that is whole shows that mke2fs
// finished. It returns ErrNoFilesystem if a check fails, another error if reading does.
func ReadSuperblock(r io.ReaderAt) (Superblock, error) { return readAt(r, primaryAt) }

func readAt(r io.ReaderAt, at volume.Bytes) (Superblock, error) {
	b := make([]byte, superblockSize)
	if _, err := r.ReadAt(b, int64(at)); err != nil {
		return Superblock{}, fmt.Errorf("read superblock at byte %d: %w", int64(at), err)
	}
	return parse(b)
}

func parse(b []byte) (Superblock, error) {
	if binary.LittleEndian.Uint16(b[offMagic:]) != magic {
		return Superblock{}, fmt.Errorf("%w: no ext4 magic", ErrNoFilesystem)
	}
	if binary.LittleEndian.Uint32(b[offReadOnly:])&metadataSums == 0 || b[offChecksumType] != checksumTypeCRC {
		return Superblock{}, fmt.Errorf("%w: it has no checksum", ErrNoFilesystem)
	}
	if binary.LittleEndian.Uint32(b[offChecksum:]) != checksum(b) {
		return Superblock{}, ErrChecksum
	}
	if n := binary.LittleEndian.Uint32(b[offLogBlockSize:]); n != logBlockSize {
		return Superblock{}, fmt.Errorf("%w: its blocks are not of %s", ErrNoFilesystem, volume.Block)
	}
	features := binary.LittleEndian.Uint32(b[offReadOnly:])
	blocks := uint64(binary.LittleEndian.Uint32(b[offBlocksHigh:]))<<32 | uint64(binary.LittleEndian.Uint32(b[offBlocks:]))
	return Superblock{
		UUID:   ondisk.FormatUUID([16]byte(b[offUUID : offUUID+16])),
		Size:   volume.Bytes(blocks) * volume.Block,
		Errors: binary.LittleEndian.Uint16(b[offState:])&stateErrors != 0,
		Mounts: int(binary.LittleEndian.Uint16(b[offMounts:])),

		ProjectQuota: features&(quotaFiles|projects) == quotaFiles|projects,
		Lavish:       lavish(b),
	}, nil
}

func lavish(b []byte) bool {
	if binary.LittleEndian.Uint32(b[offReserved:]) > 0 || binary.LittleEndian.Uint32(b[offReservedHigh:]) > 0 {
		return true
	}
	tables := uint64(binary.LittleEndian.Uint32(b[offGroupInodes:])) * uint64(binary.LittleEndian.Uint16(b[offInodeSize:]))
	group := uint64(binary.LittleEndian.Uint32(b[offGroupBlocks:])) * uint64(volume.Block)
	return tables*uint64(volume.Ext4InodeRatio) > group*inodeSize
}

// checksum is CRC-32C over what comes before it, without the final inversion.
func checksum(b []byte) uint32 { return ondisk.CRC32C(^uint32(0), b[:offChecksum]) }
