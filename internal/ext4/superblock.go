// Package ext4 creates, checks and grows ext4 file systems. Only Mkfs and SetUUID run programs, the
// host's own, so that the host's kernel can always mount the result.
package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/ondisk"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoFilesystem: the content is not the superblock of a complete ext4 file system. This does not
// mean that the device is blank: only the volume's state shows whether a file system is missing.
var ErrNoFilesystem = errors.New("no valid ext4 superblock")

// ErrChecksum is an ErrNoFilesystem: the superblock may be in the middle of a write. The kernel
// changes the superblock of a mounted file system in memory before it recomputes the checksum.
var ErrChecksum = fmt.Errorf("%w: its checksum is wrong", ErrNoFilesystem)

// A Superblock holds the identity and the condition of a file system.
type Superblock struct {
	UUID string // canonical, lower case
	Size volume.Bytes
	// Errors: the kernel, or e2fsck, has recorded that the file system is damaged.
	Errors bool
	// Mounts is how often the file system was mounted; in a copy, by the time that the copy was
	// written.
	Mounts int
	// ProjectQuota: it has the features that project quota requires.
	ProjectQuota bool
	// HighOverhead: the file system reserves a larger part of each growth, for root or for inodes, than
	// a file system that Mkfs creates.
	HighOverhead bool
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
	offReadOnly     = 0x64 // features without which it may only be read
	offUUID         = 0x68
	offBlocksHigh   = 0x150
	offReservedHigh = 0x154
	offChecksumType = 0x175
	offChecksum     = 0x3fc

	superblockSize = 1024
	primaryAt      = 1024 // on every device, after the room for a boot sector

	magic           = 0xef53
	inodeSize       = 256
	logBlockSize    = 2 // 1024 << 2: blocks of 4 KiB
	stateErrors     = 2 // EXT4_ERROR_FS
	metadataSums    = 0x400
	quotaFiles      = 0x100  // EXT4_FEATURE_RO_COMPAT_QUOTA
	projects        = 0x2000 // EXT4_FEATURE_RO_COMPAT_PROJECT
	checksumTypeCRC = 1
)

// ReadSuperblock reads and checks the primary superblock. mke2fs erases the old one before it
// begins, and writes this one last, so a valid one shows that mke2fs finished. It returns
// ErrNoFilesystem if a check fails, and another error if reading fails.
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
		HighOverhead: highOverhead(b),
	}, nil
}

func highOverhead(b []byte) bool {
	if binary.LittleEndian.Uint32(b[offReserved:]) > 0 || binary.LittleEndian.Uint32(b[offReservedHigh:]) > 0 {
		return true
	}
	tables := uint64(binary.LittleEndian.Uint32(b[offGroupInodes:])) * uint64(binary.LittleEndian.Uint16(b[offInodeSize:]))
	group := uint64(binary.LittleEndian.Uint32(b[offGroupBlocks:])) * uint64(volume.Block)
	return tables*uint64(volume.Ext4InodeRatio) > group*inodeSize
}

// checksum returns the CRC-32C of what precedes the checksum, without the final inversion.
func checksum(b []byte) uint32 { return ondisk.CRC32C(^uint32(0), b[:offChecksum]) }
