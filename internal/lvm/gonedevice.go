package lvm

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// GoneDisk returns the kernel's name of a disk that the device is mapped to and that no longer exists; empty if there
// is none. If the disk has come back under another name, LVM shows it, but requests still go to the former one until
// the mapping is reloaded. GoneDisk ignores the copies of RAID, which work without one of them and whose state LVM
// reports, and what is below devices of other programs, such as the paths of multipath. It does not notice a disk whose
// successor has the same name at the same place in sysfs. It reads only sysfs; the state may change right afterwards.
func (d Device) GoneDisk() (string, error) {
	return goneDisk(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(d.Number), unix.Minor(d.Number)))
}

// goneDisk is GoneDisk for the device of a directory in sysfs. Its entry of a disk that is gone is a link to nothing.
func goneDisk(dir string) (string, error) {
	below, err := os.ReadDir(dir + "/slaves")
	if err != nil {
		return "", fmt.Errorf("find the devices below it: %w", err)
	}
	for _, entry := range below {
		at := dir + "/slaves/" + entry.Name()
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) {
			if _, err := os.Lstat(at); err == nil { // otherwise the mapping has just changed
				return entry.Name(), nil
			}
			continue
		}
		uuid, err := readLine(at + "/dm/uuid")
		if err != nil || !strings.HasPrefix(uuid, "LVM-") {
			continue
		}
		name, err := readLine(at + "/dm/name")
		if err != nil || strings.Contains(name, imageSuffix) || strings.Contains(name, metadataSuffix) {
			continue
		}
		if gone, err := goneDisk(at); gone != "" || err != nil {
			return gone, err
		}
	}
	return "", nil
}
