package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Device is the device of a file system.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// MarkCopies marks the copies of the superblock of the file system uuid, which mke2fs has finished
// and nobody has mounted yet, as mounted once. It reports whether it had to write anything.
//
// mke2fs writes the copies before the superblock itself, so a copy alone does not show that mke2fs
// finished. A copy with this mark does, and FindCopy searches for it. The kernel keeps the mark:
// when the file system grows, it replaces the copies with the superblock of a file system that it
// has mounted. To repair tools, the mark makes no difference.
func MarkCopies(d Device, size volume.Bytes, uuid string) (written bool, err error) {
	marked := 0
	for _, at := range volume.Ext4Copies(size) {
		if at+superblockSize > size {
			continue
		}
		sb, err := readAt(d, at)
		switch {
		case errors.Is(err, ErrNoFilesystem) || err == nil && sb.UUID != uuid:
			continue // the device may be larger than the file system
		case err != nil:
			return written, err
		}
		if marked++; sb.Mounts > 0 {
			continue
		}
		if err := mark(d, at); err != nil {
			return written, err
		}
		written = true
	}
	if marked == 0 {
		return written, fmt.Errorf("mark the copies of the superblock: there are none of the file system %s", uuid)
	}
	if !written {
		return false, nil
	}
	if err := d.Sync(); err != nil {
		return true, fmt.Errorf("mark the copies of the superblock: %w", err)
	}
	return true, nil
}

func mark(d Device, at volume.Bytes) error {
	b := make([]byte, superblockSize)
	if _, err := d.ReadAt(b, int64(at)); err != nil {
		return fmt.Errorf("read superblock at byte %d: %w", int64(at), err)
	}
	binary.LittleEndian.PutUint16(b[offMounts:], 1)
	binary.LittleEndian.PutUint32(b[offChecksum:], checksum(b))
	if _, err := d.WriteAt(b, int64(at)); err != nil {
		return fmt.Errorf("mark the copy of the superblock at byte %d: %w", int64(at), err)
	}
	return nil
}

// FindCopy searches for a superblock of the file system uuid, a copy or the primary, that was
// written after mke2fs had finished: it is marked, or counts mounts. It returns the offset in
// bytes, or ErrNoFilesystem if there is none.
func FindCopy(r io.ReaderAt, size volume.Bytes, uuid string) (volume.Bytes, error) {
	for _, at := range append(volume.Ext4Copies(size), primaryAt) {
		if at+superblockSize > size {
			continue
		}
		sb, err := readAt(r, at)
		if err != nil && !errors.Is(err, ErrNoFilesystem) {
			return 0, fmt.Errorf("look for a copy of the superblock: %w", err)
		}
		if err == nil && sb.UUID == uuid && sb.Mounts > 0 {
			return at, nil
		}
	}
	return 0, ErrNoFilesystem
}
