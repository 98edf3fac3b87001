package lvm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrSuspended: device-mapper holds back whatever is asked of a device until somebody
// resumes it.
var ErrSuspended = errors.New("suspended")

// CheckResumed fails with ErrSuspended where the device, or one that it stands on, is
// suspended: a command of LVM's or a person's was cut short. Whoever opens such a device
// waits in the kernel, where not even SIGKILL reaches him. It reads sysfs alone, and
// knows nothing of the next moment.
func (d Device) CheckResumed() error {
	return checkResumed(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(d.Number), unix.Minor(d.Number)), d.Path)
}

// checkResumed looks at a device, at its directory in sysfs, and at what it stands on.
func checkResumed(dir, path string) error {
	suspended, err := readLine(dir + "/dm/suspended")
	other := errors.Is(err, os.ErrNotExist) // not device-mapper's; what it stands on may be, as with md
	if err != nil && !other {
		return fmt.Errorf("see whether device %s is suspended: %w", path, err)
	}
	if !other && suspended != "0" {
		name, err := readLine(dir + "/dm/name")
		if err != nil {
			return fmt.Errorf("see which device is suspended: %w", err)
		}
		return fmt.Errorf("device %s is of no use: %s is %w, and whoever opens it waits for ever; when nobody works on it any more, run `dmsetup resume %s`; it is tried again",
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
