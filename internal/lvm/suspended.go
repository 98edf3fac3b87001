package lvm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
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
		return fmt.Errorf("device %s cannot be opened: %s is %w, and a process that opens it hangs; when no command works on it any more, run `dmsetup resume %s`; this call is retried",
			path, name, ErrSuspended, name)
	}
	if _, err := os.Stat(dir + "/partition"); err == nil {
		dir += "/.." // its disk
	}
	below, err := os.ReadDir(dir + "/slaves")
	if err != nil && (!other || !errors.Is(err, os.ErrNotExist)) {
		return fmt.Errorf("see what device %s stands on: %w", path, err)
	}
	for _, d := range below {
		if err := checkResumed(dir+"/slaves/"+d.Name(), path); err != nil {
			return err
		}
	}
	return nil
}
