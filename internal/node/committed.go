package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// committedSize returns the size of path, which is the volume's device or its open LUKS container. It fails if
// the kernel's device is larger than LVM's metadata records (checkCommitted).
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

// checkCommitted returns an error if a device is larger than the size that LVM has committed for it: an
// interrupted lvextend can leave such a device. LVM may allocate the space at its end to another volume, so
// nothing may be written there. checkCommitted is pure.
func checkCommitted(lv lvm.LogicalVolume, path string, size, committed volume.Bytes) error {
	if size <= committed {
		return nil
	}
	where := string(lv.Group) + "/" + string(lv.Name)
	return fmt.Errorf("device %s has %d bytes, and %d are committed in LVM's metadata for it: a command of LVM's was interrupted, and the rest may belong to another volume; nothing is written to it until `lvchange --refresh %s` has restored its size", path, int64(size), int64(committed), where)
}

// extend extends a volume to at least size, and makes sure that its device d has that size in the kernel and can be
// opened: LVM commits a size before it gives it to the kernel, and may be interrupted in between. Then the device is
// suspended (lvm.ErrSuspended), or too small if a person has resumed it since. The next call fails in the same way
// until the device has been repaired, even though LVM has nothing left to extend.
func (e *Engine) extend(ctx context.Context, lv lvm.LogicalVolume, d lvm.Device, size volume.Bytes) error {
	if err := e.lvm.Extend(ctx, lv, size); err != nil {
		return err
	}
	e.after("lvextend")
	if err := e.awaitResumed(ctx, d); err != nil {
		return err
	}
	is, err := deviceSize(d.Path)
	if err != nil || is >= size {
		return err
	}
	where := string(lv.Group) + "/" + string(lv.Name)
	return fmt.Errorf("extend logical volume %[1]s: LVM has committed at least %[2]d bytes for it, and its device %[3]s has %[4]d: a command of LVM's was interrupted; the volume does not grow until `lvchange --refresh %[1]s` has given the device its size", where, int64(size), d.Path, int64(is))
}
