// Package xfs makes, checks, grows and limits XFS file systems. Only Mkfs and SetUUID run
// programs, the host's own, so that the host's kernel can always mount the result; all
// else is system calls, which are cheap enough for the mount of an existing volume.
package xfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrNoFilesystem: what was read is not the superblock of a whole XFS file system. This
// does not mean that the device is blank: only the volume's state shows whether a file
// system is missing.
var ErrNoFilesystem = errors.New("no valid XFS superblock")

// A Superblock holds what identifies a file system.
type Superblock struct {
	UUID string // canonical, lower case
}

// Offsets in the primary superblock, all big-endian but the CRC (Linux,
// fs/xfs/libxfs/xfs_format.h: struct xfs_dsb; XFS Algorithms & Data Structures,
// "Superblocks").
const (
	offMagic      = 0
	offBlockSize  = 4
	offUUID       = 32
	offVersion    = 100
	offSectorSize = 102
	offInProgress = 126
	offCRC        = 224

	magic       = "XFSB"
	versionMask = 0xf
	version5    = 5
	maxSector   = 32 << 10
	minSector   = 512
)

// ReadSuperblock reads and checks the primary superblock: magic, version 5 with its CRC,
// and that mkfs finished (it clears sb_inprogress last). It returns ErrNoFilesystem if a
// check fails, another error if reading does.
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
		return Superblock{}, fmt.Errorf("%w: mkfs did not come to its end", ErrNoFilesystem)
	}
	id := formatUUID([16]byte(sector[offUUID : offUUID+16]))
	return Superblock{UUID: id}, nil
}

// checksum is CRC-32C over the sector with the CRC itself taken as zero.
func checksum(sector []byte) uint32 {
	crc := crc32c(^uint32(0), sector[:offCRC])
	crc = crc32c(crc, make([]byte, 4))
	return ^crc32c(crc, sector[offCRC+4:])
}

// crc32c continues a CRC-32C bit by bit. hash/crc32 is made for long inputs: at
// its first use it works through 1.5 MiB to prepare its tables, which is longer
// than anything else a mount does here, and a flexlvm process needs one sector.
func crc32c(crc uint32, p []byte) uint32 {
	const castagnoli = 0x82f63b78 // reversed, as hash/crc32 has it
	for _, b := range p {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ castagnoli&-(crc&1)
		}
	}
	return crc
}
