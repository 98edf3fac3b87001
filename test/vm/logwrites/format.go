// Package logwrites reads the recording of a disk by the device-mapper target log-writes, and reconstructs the
// disks that a power cut may have left. These lack the content of the disk's cache, which killing a virtual machine
// or a process does not lose.
//
// The target logs a write when it is complete. Writes enter the log right before the flush that makes them durable;
// a FUA write and a mark, which is a note of the writer, enter immediately. So the log up to any entry is the
// content of a disk that lost its cache at that point, and a mark precedes everything that was not durable when the
// mark was set (Linux, Documentation/admin-guide/device-mapper/log-writes.rst).
package logwrites

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Flags are the kind of an entry.
type Flags uint64

// From Linux, drivers/md/dm-log-writes.c.
const (
	Flush Flags = 1 << iota
	FUA
	Discard
	Mark
	Metadata // the file system flagged it as metadata
)

// Magic and version of the log's first sector.
const (
	magic   = 0x6a736677736872
	version = 1
)

// lastMark is the target's own mark when it is removed.
const lastMark = "dm-log-writes-end"

// Sizes of the structures on disk, little-endian: struct log_write_super holds magic,
// version and number of entries, 64 bits each, and 32 bits of sector size; struct
// log_write_entry holds sector, number of sectors, flags and length of the mark.
const (
	superSize = 28
	entrySize = 32
)

// An Entry is one completed request. Its data is in the log.
type Entry struct {
	Sector  int64 // in sectors of the log
	Sectors int64
	Flags   Flags
	Mark    string // the writer's note, if Flags have Mark

	data int64 // where its data begins in the log
}

// Has reports whether all of these flags are set.
func (e Entry) Has(f Flags) bool { return e.Flags&f == f }

// durable reports whether the completion of this entry made it, or all entries before it, durable.
func (e Entry) durable() bool { return e.Flags&(Flush|FUA) != 0 }

// A Log is a recording.
type Log struct {
	SectorSize int64
	Entries    []Entry

	source io.ReaderAt
}

// Read reads the headers of all entries of a log.
func Read(source io.ReaderAt) (*Log, error) {
	super := make([]byte, superSize)
	if _, err := source.ReadAt(super, 0); err != nil {
		return nil, fmt.Errorf("read the log's first sector: %w", err)
	}
	sectorSize, entries, err := parseSuper(super)
	if err != nil {
		return nil, err
	}
	l := &Log{SectorSize: sectorSize, source: source}
	head := make([]byte, sectorSize)
	at := sectorSize
	for i := range entries {
		if _, err := source.ReadAt(head, at); err != nil {
			return nil, fmt.Errorf("read entry %d of the log: %w", i, err)
		}
		e, err := parseEntry(head)
		if err != nil {
			return nil, fmt.Errorf("entry %d of the log, at byte %d: %w", i, at, err)
		}
		e.data = at + sectorSize
		if e.Mark != lastMark {
			l.Entries = append(l.Entries, e)
		}
		at = e.data
		if !e.Has(Discard) {
			at += e.Sectors * sectorSize
		}
	}
	return l, nil
}

func parseSuper(b []byte) (sectorSize, entries int64, err error) {
	le := binary.LittleEndian
	if m := le.Uint64(b); m != magic {
		return 0, 0, fmt.Errorf("this is no log of log-writes: its magic is %x", m)
	}
	if v := le.Uint64(b[8:]); v != version {
		return 0, 0, fmt.Errorf("the log has version %d, and %d is known", v, version)
	}
	sectorSize = int64(le.Uint32(b[24:]))
	if sectorSize < 512 || sectorSize&(sectorSize-1) != 0 {
		return 0, 0, fmt.Errorf("the log has sectors of %d bytes", sectorSize)
	}
	return sectorSize, int64(le.Uint64(b[16:])), nil
}

// parseEntry parses an entry's sector, which also holds the text of a mark.
func parseEntry(b []byte) (Entry, error) {
	le := binary.LittleEndian
	const most = 1 << 40 // sectors: far more than any disk has
	sector, sectors, length := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[24:])
	e := Entry{Sector: int64(sector), Sectors: int64(sectors), Flags: Flags(le.Uint64(b[16:]))}
	if sector > most || sectors > most {
		return e, fmt.Errorf("%d sectors at sector %d are more than a disk has", sectors, sector)
	}
	if known := Flush | FUA | Discard | Mark | Metadata; e.Flags&^known != 0 {
		return e, fmt.Errorf("unknown flags %x", uint64(e.Flags))
	}
	if !e.Has(Mark) {
		return e, nil
	}
	if length > uint64(len(b)-entrySize) {
		return e, fmt.Errorf("a mark of %d bytes does not fit into its sector", length)
	}
	e.Mark = string(bytes.TrimRight(b[entrySize:entrySize+length], "\x00"))
	return e, nil
}
