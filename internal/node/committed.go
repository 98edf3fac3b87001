package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// committedSize returns the size of the volume's content at path: of its device, or of its LUKS container. It
// fails if the kernel's devices are larger than LVM's metadata says (checkCommitted).
func (e *Engine) committedSize(ctx context.Context, d lvm.Device, path string) (volume.Bytes, error) {
	lv, err := e.lvm.Volume(ctx, d.Group, d.Name)
	if err != nil {
		return 0, err
	}
	if lv.UUID != d.VolumeUUID {
		return 0, fmt.Errorf("logical volume %s/%s is %s, and was %s; try again", d.Group, d.Name, lv.UUID, d.VolumeUUID)
	}
	size, err := deviceSize(d.Path)
	if err != nil {
		return 0, err
	}
	if err := checkCommitted(lv, d.Path, size, lv.Size); err != nil || path == d.Path {
		return size, err
	}
	if size, err = deviceSize(path); err != nil {
		return 0, err
	}
	return size, checkCommitted(lv, path, size, lv.Size-volume.LUKSHeader)
}

// checkCommitted refuses a device that is larger than what LVM has committed for it: an interrupted lvextend
// can leave a larger device, whose end LVM may give to another volume. Nothing may be written there. It is
// pure.
func checkCommitted(lv lvm.LogicalVolume, path string, size, committed volume.Bytes) error {
	if size <= committed {
		return nil
	}
	where := string(lv.Group) + "/" + string(lv.Name)
	return fmt.Errorf("device %s has %d bytes, and %d are committed in LVM's metadata for it: a command of LVM's was interrupted, and the rest may belong to another volume; nothing is written to it until `lvchange --refresh %s` has restored its size", path, int64(size), int64(committed), where)
}
