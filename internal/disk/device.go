package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Device is a block device of any kind: a disk, a partition, or one built on others.
type Device struct {
	Path       string       // /dev/NAME, as the kernel calls it
	Number     uint64       // as in stat's st_rdev
	ID         string       // identifies it among all others; empty if nothing does
	Start      volume.Bytes // where it begins on its disk, if it is a partition
	Size       volume.Bytes
	ReadOnly   bool
	Holders    []string // devices that are built on it
	Under      []string // IDs of the devices that it is built on, down to the disks
	Partitions bool     // the kernel knows partitions of it
	Mapping    string   // its name in /dev/mapper; empty if it is not a mapping
	// UnderUnknown is why Under may be incomplete, for example because a disk of a RAID was removed.
	UnderUnknown error
}

// Device describes the block device with a number. A partition is identified by its disk and its
// number, a mapping by its UUID, and a loop device by its backing file.
func (h Host) Device(number uint64) (Device, error) {
	d := Device{Number: number}
	dir, err := filepath.EvalSymlinks(filepath.Join(h.Sys, "dev/block", fmt.Sprintf("%d:%d", unix.Major(number), unix.Minor(number))))
	if err != nil {
		return d, fmt.Errorf("find block device: %w", err)
	}
	d.Path = filepath.Join(h.Dev, strings.ReplaceAll(filepath.Base(dir), "!", "/"))
	fail := func(err error) (Device, error) { return d, fmt.Errorf("read what %s is: %w", d.Path, err) }
	sectors, err := number64(dir, "size")
	if err != nil {
		return fail(err)
	}
	start, err := number64(dir, "start")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // only partitions have one
		return fail(err)
	}
	readOnly, err := number64(dir, "ro")
	if err != nil {
		return fail(err)
	}
	d.Start, d.Size, d.ReadOnly = volume.Bytes(start)*512, volume.Bytes(sectors)*512, readOnly != 0
	holders, err := os.ReadDir(filepath.Join(dir, "holders"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	for _, e := range holders {
		d.Holders = append(d.Holders, e.Name())
	}
	d.Under, d.UnderUnknown = under(dir)
	parts, err := filepath.Glob(filepath.Join(dir, "*", "partition"))
	if err != nil {
		return fail(err)
	}
	d.Partitions = len(parts) > 0
	d.ID = identifyAny(dir)
	if d.Mapping, err = line(filepath.Join(dir, "dm/name")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	return d, nil
}

// under returns the IDs of the devices that a device, or the disk of a partition, is built on, down to the disks; with an
// error, those that it could determine. The kernel lists a disk that was removed until nothing uses it.
func under(dir string) (ids []string, err error) {
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	slaves, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	err = nil
	for _, e := range slaves {
		slave, failed := filepath.EvalSymlinks(filepath.Join(dir, "slaves", e.Name()))
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		if id := identifyAny(slave); id != "" {
			ids = append(ids, id)
		}
		further, failed := under(slave)
		ids, err = append(ids, further...), errors.Join(err, failed)
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

func number64(dir, file string) (int64, error) { return number(filepath.Join(dir, file)) }

// identifyAny is identify for devices of any kind.
func identifyAny(dir string) string {
	if part, err := line(filepath.Join(dir, "partition")); err == nil {
		if id := identify(filepath.Dir(dir)); id != "" {
			return id + "-part" + part
		}
		return ""
	}
	for _, at := range []struct{ file, prefix string }{{"dm/uuid", "dm-"}, {"loop/backing_file", "loop-"}} {
		if text, err := line(filepath.Join(dir, at.file)); err == nil && text != "" && !strings.HasSuffix(text, " (deleted)") {
			return at.prefix + text
		}
	}
	return identify(dir)
}
