package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Device is the block device of an active logical volume. Its identity comes from the kernel
// (device-mapper's UUID in sysfs, which LVM composes of the group's and the volume's UUIDs), so
// finding it runs no program, and a stale node in /dev is noticed.
type Device struct {
	Path       string // /dev/mapper/…
	Number     uint64 // as in stat's st_rdev
	Group      volume.Group
	Name       volume.Name
	GroupUUID  string
	VolumeUUID string
}

// ErrNoDevice: the volume has no device, so it is inactive or does not exist. Only LVM knows which.
var ErrNoDevice = errors.New("no such device")

// FindDevice returns the device of a volume.
func FindDevice(g volume.Group, n volume.Name) (Device, error) {
	want := volume.DeviceName(g, n)
	path := "/dev/mapper/" + want
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return Device{}, fmt.Errorf("%w: %s", ErrNoDevice, path)
		}
		return Device{}, fmt.Errorf("find device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Device{}, fmt.Errorf("find device %s: it is not a block device; remove it", path)
	}
	d, err := DeviceByNumber(st.Rdev)
	if errors.Is(err, ErrNoDevice) {
		return Device{}, fmt.Errorf("%s is left over from a device that is gone: %w", path, ErrNoDevice)
	}
	if err != nil {
		return Device{}, err
	}
	if volume.DeviceName(d.Group, d.Name) != want {
		return Device{}, fmt.Errorf("find device %s: it leads to volume %s/%s; run `vgmknodes`", path, d.Group, d.Name)
	}
	d.Path = path
	return d, nil
}

// DeviceByNumber identifies a device by its number, as in mountinfo and stat. The error is
// ErrNoDevice if there is no such device or it is not a plain logical volume.
func DeviceByNumber(number uint64) (Device, error) {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/dm/", unix.Major(number), unix.Minor(number))
	uuid, err := readLine(dir + "uuid")
	if errors.Is(err, os.ErrNotExist) {
		return Device{}, fmt.Errorf("%w: device %d:%d is not a logical volume", ErrNoDevice, unix.Major(number), unix.Minor(number))
	}
	if err != nil {
		return Device{}, fmt.Errorf("identify device: %w", err)
	}
	name, err := readLine(dir + "name")
	if err != nil {
		return Device{}, fmt.Errorf("identify device: %w", err)
	}
	d := Device{Number: number, Path: "/dev/mapper/" + name}
	var ok bool
	if d.GroupUUID, d.VolumeUUID, ok = splitUUID(uuid); !ok {
		return Device{}, fmt.Errorf("%w: device %s is not a plain logical volume (device-mapper UUID %q)", ErrNoDevice, name, uuid)
	}
	if d.Group, d.Name, ok = volume.SplitDeviceName(name); !ok {
		return Device{}, fmt.Errorf("%w: device %s has no name of LVM's", ErrNoDevice, name)
	}
	return d, nil
}

// Devices returns the devices of all active logical volumes.
func Devices() ([]Device, error) {
	numbers, err := filepath.Glob("/sys/block/dm-*/dev")
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, file := range numbers {
		line, err := readLine(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just been removed
		}
		if err != nil {
			return nil, fmt.Errorf("list devices: %w", err)
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(line, "%d:%d", &major, &minor); err != nil {
			return nil, fmt.Errorf("read the number in %s: %w", file, err)
		}
		d, err := DeviceByNumber(unix.Mkdev(major, minor))
		if errors.Is(err, ErrNoDevice) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// Thin reports whether, to the kernel, a device is a volume in a thin pool: the device-mapper UUID
// of the device below it has LVM's suffix for such a pool.
func Thin(number uint64) (bool, error) {
	return thin(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(number), unix.Minor(number)))
}

func thin(dir string) (bool, error) {
	below, err := os.ReadDir(dir + "/slaves")
	if err != nil {
		return false, fmt.Errorf("find the devices below it: %w", err)
	}
	for _, d := range below {
		uuid, err := readLine(dir + "/slaves/" + d.Name() + "/dm/uuid")
		if errors.Is(err, os.ErrNotExist) {
			continue // not device-mapper's
		}
		if err != nil {
			return false, fmt.Errorf("find the devices below it: %w", err)
		}
		if strings.HasSuffix(uuid, "-tpool") {
			return true, nil
		}
	}
	return false, nil
}

// IOTime returns how long a block device has been busy since the node booted. It is the tenth field
// of Linux' Documentation/block/stat.rst, io_ticks, in milliseconds. device is a path in /dev, and
// may be a symbolic link.
func IOTime(device string) (time.Duration, error) {
	path, err := filepath.EvalSymlinks(device)
	if err != nil {
		return 0, fmt.Errorf("read how busy %s is: %w", device, err)
	}
	line, err := readLine("/sys/class/block/" + filepath.Base(path) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read how busy %s is: %w", device, err)
	}
	return parseIOTime(device, line)
}

func parseIOTime(device, line string) (time.Duration, error) {
	const ticks = 9
	fields := strings.Fields(line)
	if len(fields) <= ticks {
		return 0, fmt.Errorf("read how busy %s is: %q has too few fields", device, line)
	}
	ms, err := strconv.ParseInt(fields[ticks], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read how busy %s is: %w", device, err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// IOSizes returns the minimum and the optimal I/O size of the device, as far as the kernel knows
// them. Programs take these for the unit and the width of the device's stripes.
func (d Device) IOSizes() ([]volume.Bytes, error) {
	var sizes []volume.Bytes
	for _, which := range []string{"minimum_io_size", "optimal_io_size"} {
		line, err := readLine(fmt.Sprintf("/sys/dev/block/%d:%d/queue/%s", unix.Major(d.Number), unix.Minor(d.Number), which))
		if err != nil {
			return nil, fmt.Errorf("read how device %s is used best: %w", d.Path, err)
		}
		size, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read how device %s is used best: %w", d.Path, err)
		}
		sizes = append(sizes, volume.Bytes(size))
	}
	return sizes, nil
}

func readLine(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}

const uuidChars = 32

// splitUUID splits device-mapper's "LVM-" + group UUID + volume UUID, both without hyphens, and
// restores the hyphens as LVM prints them.
func splitUUID(s string) (group, vol string, ok bool) {
	s, ok = strings.CutPrefix(s, "LVM-")
	if !ok || len(s) != 2*uuidChars {
		return "", "", false
	}
	return hyphenated(s[:uuidChars]), hyphenated(s[uuidChars:]), true
}

func hyphenated(s string) string {
	return strings.Join([]string{s[:6], s[6:10], s[10:14], s[14:18], s[18:22], s[22:26], s[26:]}, "-")
}
