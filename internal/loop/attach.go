package loop

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

// A Device is a file that is attached as a loop device.
type Device struct {
	File
	Device string // /dev/loopN
	Number uint64 // as in stat's st_rdev
	// Direct: the kernel reads and writes the file without the page cache.
	Direct bool
}

// maxTries bounds how often another process may attach to the free loop device first.
const maxTries = 16

// Attach returns the loop device of a file, and attaches the file first if necessary. The caller
// must prevent concurrent calls for one file.
func Attach(path string) (Device, error) {
	r, f, err := open(path)
	if err != nil {
		return Device{}, err
	}
	defer func() { _ = r.Close() }()
	for range maxTries {
		d, there, err := find(r, f)
		if err != nil {
			return Device{}, fmt.Errorf("attach file %s: %w", path, err)
		}
		if there {
			return d, nil
		}
		if err := configure(r, f); err != nil && !errors.Is(err, unix.EBUSY) {
			return Device{}, fmt.Errorf("attach file %s: %w", path, err)
		}
	}
	return Device{}, fmt.Errorf("attach file %s: others have taken the loop device that was free, %d times; try again", path, maxTries)
}

// Attached returns the device of a file; false if it is not attached.
func Attached(path string) (Device, bool, error) {
	r, f, err := open(path)
	if err != nil {
		return Device{}, false, err
	}
	defer func() { _ = r.Close() }()
	d, there, err := find(r, f)
	if err != nil {
		return d, false, fmt.Errorf("find the loop device of file %s: %w", path, err)
	}
	return d, there, nil
}

// configure attaches a file to a free loop device, in one system call.
func configure(r *os.File, f File) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w; load the kernel module loop", err)
	}
	defer func() { _ = control.Close() }()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("ask for a free loop device: %w", err)
	}
	device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	config := unix.LoopConfig{
		Fd: uint32(r.Fd()), Size: uint32(f.Block),
		Info: unix.LoopInfo64{Offset: uint64(Header), Sizelimit: uint64(f.Size), Flags: unix.LO_FLAGS_DIRECT_IO},
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], f.Path)
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return fmt.Errorf("configure %s (it takes Linux 5.8): %w", device.Name(), err)
	}
	return nil
}

// find returns the loop device of an open file.
func find(r *os.File, f File) (Device, bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.Fd()), &st); err != nil {
		return Device{}, false, err
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return Device{}, false, err
	}
	slices.Sort(bound)
	for _, dir := range bound {
		d := Device{File: f, Device: "/dev/" + filepath.Base(filepath.Dir(dir))}
		is, err := d.is(st)
		if err != nil || !is {
			if err == nil {
				continue
			}
			return Device{}, false, err
		}
		direct, err := os.ReadFile(filepath.Join(dir, "dio"))
		if err != nil {
			return Device{}, false, err
		}
		d.Direct = strings.TrimSpace(string(direct)) == "1"
		return d, true, nil
	}
	return Device{}, false, nil
}

// is reports whether the file backs the device, and sets d.Number. A device that shows the file
// with its header, or another part of it, is an error, because two devices on one file know nothing
// of each other.
func (d *Device) is(file unix.Stat_t) (bool, error) {
	device, err := os.OpenFile(d.Device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = device.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return false, nil // detached meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("ask what %s is made of: %w", d.Device, err)
	}
	if info.Device != file.Dev || info.Inode != file.Ino {
		return false, nil
	}
	if volume.Bytes(info.Offset) != Header || volume.Bytes(info.Sizelimit) != d.Size {
		return false, fmt.Errorf("%s was created on it by another program, from byte %d on; detach that with `losetup --detach %s`", d.Device, info.Offset, d.Device)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(device.Fd()), &st); err != nil {
		return false, err
	}
	d.Number = st.Rdev
	return true, nil
}
