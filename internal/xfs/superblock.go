// Package xfs creates, checks and grows XFS file systems. Only Mkfs and SetUUID run programs, the
// host's own, so that the host's kernel can always mount the result; everything else is system
// calls, which are cheap enough for the mount of an existing volume.
package xfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/ondisk"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoFilesystem: the content is not the superblock of a complete XFS file system. This does not
// mean that the device is blank: only the volume's state shows whether a file system is missing.
var ErrNoFilesystem = errors.New("no valid XFS superblock")

// A Superblock holds what identifies a file system.
type Superblock struct {
	UUID string // canonical, lower case

	group   volume.Bytes // size of an allocation group
	groups  int
	mounted bool // with quotas, at least once
}

// Offsets in the primary superblock, all big-endian but the CRC (Linux,
// fs/xfs/libxfs/xfs_format.h: struct xfs_dsb; XFS Algorithms & Data Structures,
// "Superblocks").
const (
	offMagic      = 0
	offBlockSize  = 4
	offUUID       = 32
	offGroup      = 84 // in blocks
	offGroups     = 88
	offVersion    = 100
	offSectorSize = 102
	offInProgress = 126
	offQuotas     = 176
	offCRC        = 224

	magic       = "XFSB"
	versionMask = 0xf
	version5    = 5
	maxSector   = 32 << 10
	minSector   = 512
)

// ReadSuperblock reads and checks the primary superblock: magic, version 5 with its CRC, and that
// mkfs finished (it clears sb_inprogress last, which proves nothing after a power cut: the rest may
// not have been flushed). It returns ErrNoFilesystem if a check fails, and another error if reading
// fails.
func ReadSuperblock(r io.ReaderAt) (Superblock, error) {
	head := make([]byte, minSector)
	if _, err := r.ReadAt(head, 0); err != nil {
		return Superblock{}, fmt.Errorf("read superblock: %w", err)
	}
	if string(head[offMagic:offMagic+4]) != magic {
		return Superblock{}, fmt.Errorf("%w: no XFS magic", ErrNoFilesystem)
	}
	size := int(binary.BigEndian.Uint16(head[offSectorSize:]))
	if size < minSector || size > maxSector || size&(size-1) != 0 {
		return Superblock{}, fmt.Errorf("%w: sector size %d", ErrNoFilesystem, size)
	}
	sector := make([]byte, size)
	if _, err := r.ReadAt(sector, 0); err != nil {
		return Superblock{}, fmt.Errorf("read superblock: %w", err)
	}
	return parseSuperblock(sector)
}

func parseSuperblock(sector []byte) (Superblock, error) {
	if v := binary.BigEndian.Uint16(sector[offVersion:]) & versionMask; v != version5 {
		return Superblock{}, fmt.Errorf("%w: version %d, not 5", ErrNoFilesystem, v)
	}
	want := binary.LittleEndian.Uint32(sector[offCRC:])
	if got := checksum(sector); got != want {
		return Superblock{}, fmt.Errorf("%w: its checksum is wrong", ErrNoFilesystem)
	}
	if sector[offInProgress] != 0 {
		return Superblock{}, fmt.Errorf("%w: mkfs did not finish", ErrNoFilesystem)
	}
	id := ondisk.FormatUUID([16]byte(sector[offUUID : offUUID+16]))
	be := binary.BigEndian
	return Superblock{
		UUID:   id,
		group:  volume.Bytes(be.Uint32(sector[offGroup:])) * volume.Bytes(be.Uint32(sector[offBlockSize:])),
		groups: int(be.Uint32(sector[offGroups:])),

		mounted: be.Uint16(sector[offQuotas:]) != 0,
	}, nil
}

// checksum returns the CRC-32C of the sector, with the CRC itself taken as zero.
func checksum(sector []byte) uint32 {
	crc := ondisk.CRC32C(^uint32(0), sector[:offCRC])
	crc = ondisk.CRC32C(crc, make([]byte, 4))
	return ^ondisk.CRC32C(crc, sector[offCRC+4:])
}
