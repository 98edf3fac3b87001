package node

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A disk that was away and is back has another device in the kernel. LVM finds it there and reports nothing, but active
// volumes remain mapped to the former device and fail until a person refreshes them. flexlvm does not: a file system
// that is mounted meanwhile has failed writes, and a refreshed raid1 volume may be overwritten with an old copy.

// refreshCommands returns the commands that map an active volume to the devices that its disks have now.
func refreshCommands(lv lvm.LogicalVolume) string {
	refresh := fmt.Sprintf("`lvchange --refresh %s/%s`", lv.Group, lv.Name)
	if lv.Shape.Layout == volume.Thin {
		refresh = fmt.Sprintf("`lvchange --refresh %s/%s` and %s", lv.Group, lv.Shape.ThinPool, refresh)
	}
	return refresh
}

// explainDeviceError adds to an error of a volume's device what to do if its disk was away and is back.
func explainDeviceError(lv lvm.LogicalVolume, err error) error {
	if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if lv.Shape.Layout == volume.Raid1 { // a refresh may overwrite a newer copy
		return fmt.Errorf("%w; if a disk of volume %s/%s was away and is back, read docs/disk-loss.md#the-disk-is-dead", err, lv.Group, lv.Name)
	}
	return fmt.Errorf("%w; if a disk of volume %s/%s was away and is back, run %s once nothing has the volume mounted: it is still mapped to the disk's former device", err, lv.Group, lv.Name, refreshCommands(lv))
}

// explainGoneDisk reports a volume that is mapped to the former device of a disk, unless LVM reports a problem, such as
// a missing disk. A volume that is given up can be evicted all the same.
func explainGoneDisk(v *inventory.Volume, lv lvm.LogicalVolume, goneDisk func() (string, error)) {
	if v.Problem != "" || v.State == "" || isGivenUp(v.State) || !lv.Active || lv.Shape.Layout == volume.Raid1 || lv.Origin != "" {
		return
	}
	if disk, err := goneDisk(); err == nil && disk != "" {
		v.Problem = fmt.Sprintf("it is mapped to the disk %s, which is gone, so reading and writing fail; if the disk is back under another name, run %s once nothing has the volume mounted: see docs/disk-loss.md#the-disk-is-dead", disk, refreshCommands(lv))
	}
}

// goneDiskOf returns the disk that a volume is mapped to and that is gone; empty if there is none.
func goneDiskOf(lv lvm.LogicalVolume) (string, error) {
	d, err := lvm.FindDevice(lv.Group, lv.Name)
	if err != nil {
		return "", err
	}
	return d.GoneDisk()
}
