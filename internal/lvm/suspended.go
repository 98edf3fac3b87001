package lvm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrSuspended: device-mapper holds back all requests to a device until it is resumed.
var ErrSuspended = errors.New("suspended")

// CheckResumed fails with ErrSuspended if the device, or one below it, is suspended: a command of
// LVM or of a person was interrupted. A process that opens such a device hangs in the kernel, where
// not even SIGKILL ends it. CheckResumed reads only sysfs; the device may be suspended right
// afterwards.
func (d Device) CheckResumed() error {
	return checkResumed(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(d.Number), unix.Minor(d.Number)), d.Path)
}

// checkResumed checks the device of a directory in sysfs, and the devices below it.
func checkResumed(dir, path string) error {
	suspended, err := readLine(dir + "/dm/suspended")
	other := errors.Is(err, os.ErrNotExist) // not device-mapper's; a device below may be, as with md
	if err != nil && !other {
		return fmt.Errorf("see whether device %s is suspended: %w", path, err)
	}
	if !other && suspended != "0" {
		name, err := readLine(dir + "/dm/name")
		if err != nil {
			return fmt.Errorf("see which device is suspended: %w", err)
		}
		return fmt.Errorf("device %s cannot be opened: %s is %w, and a process that opens it hangs; when no command works on it any more, run %s; this call is retried",
			path, name, ErrSuspended, resumeCommand(dir, name))
	}
	if _, err := os.Stat(dir + "/partition"); err == nil {
		dir += "/.." // its disk
	}
	below, err := os.ReadDir(dir + "/slaves")
	if err != nil && (!other || !errors.Is(err, os.ErrNotExist)) {
		return fmt.Errorf("find the devices below %s: %w", path, err)
	}
	for _, d := range below {
		if err := checkResumed(dir+"/slaves/"+d.Name(), path); err != nil {
			return err
		}
	}
	return nil
}

// resumeCommand returns the command with which a person resumes the mapping of a directory in sysfs. An
// interrupted LVM command may have left an inactive table in the kernel that LVM has not committed, for
// example of a larger size. Both `dmsetup resume` and LVM would activate that table. So the command clears
// it in this mapping and all suspended mappings below, and LVM then loads the table that its metadata
// describes.
func resumeCommand(dir, name string) string {
	group, lv, ok := refreshable(dir, name)
	if !ok {
		return "`dmsetup resume " + name + "`"
	}
	return fmt.Sprintf("`dmsetup clear %s && lvchange --refresh %s/%s`", strings.Join(suspendedNames(dir, nil), " "), group, lv)
}

// refreshable returns the logical volume that an LVM mapping belongs to, as lvchange accepts it. The
// mapping may be a layer of that volume, such as "-real", or a hidden volume of it, such as "_rimage_0".
func refreshable(dir, name string) (volume.Group, volume.Name, bool) {
	uuid, err := readLine(dir + "/dm/uuid")
	if err != nil || !strings.HasPrefix(uuid, "LVM-") {
		return "", "", false
	}
	if layer := strings.LastIndexByte(uuid, '-'); layer > len("LVM") {
		name = strings.TrimSuffix(name, uuid[layer:])
	}
	group, lv, ok := volume.SplitDeviceName(name)
	for _, part := range []string{imageSuffix, metadataSuffix, "_tdata", "_tmeta"} {
		whole, _, _ := strings.Cut(string(lv), part)
		lv = volume.Name(whole)
	}
	return group, lv, ok
}

// suspendedNames appends the names of the suspended mappings of a directory in sysfs and below, each
// once. It omits mappings that cannot be read: the retried call checks the device again.
func suspendedNames(dir string, names []string) []string {
	name, err := readLine(dir + "/dm/name")
	if suspended, serr := readLine(dir + "/dm/suspended"); err == nil && serr == nil && suspended != "0" && !slices.Contains(names, name) {
		names = append(names, name)
	}
	below, _ := os.ReadDir(dir + "/slaves")
	for _, d := range below {
		names = suspendedNames(dir+"/slaves/"+d.Name(), names)
	}
	return names
}
