package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Mappings of device-mapper on a logical volume: the LUKS container of an encrypted volume, and the published
// device of a raw block volume. If a volume has both, the device is on the container.

// cryptName returns the name of the mapping of an encrypted volume's container.
func cryptName(d lvm.Device, tags volume.Tags) string {
	if tags.FSType == volume.Raw {
		return dm.BlockCryptName(d.VolumeUUID)
	}
	return dm.CryptName(d.VolumeUUID)
}

// containerOf returns the mapping of the LUKS container that the tags name, no matter who opened it.
func containerOf(d lvm.Device, tags volume.Tags) (dm.Mapping, error) {
	m, err := dm.On(dm.Sys, d.Number)
	if err != nil {
		return dm.Mapping{}, err
	}
	if m.Name != cryptName(d, tags) || m.UUID != tags.LUKS {
		return dm.Mapping{}, fmt.Errorf("%w: volume %s/%s has the mapping %s of the encrypted volume %s; expected %s; check it with `cryptsetup status %s`, and close it", ErrDamaged, d.Group, d.Name, m.Name, m.UUID, tags.LUKS, m.Name)
	}
	return m, nil
}

// openContainerOf is containerOf for callers that open the container if necessary: it removes a half-made
// mapping that a killed cryptsetup has left.
func (e *Engine) openContainerOf(ctx context.Context, d lvm.Device, tags volume.Tags) (dm.Mapping, error) {
	m, err := containerOf(d, tags)
	if err != nil {
		return m, err
	}
	noTable, err := hasNoTable(m)
	if err != nil || !noTable {
		return m, err
	}
	gone, err := e.removeUnusedMapping(ctx, m)
	if err == nil && gone {
		err = dm.ErrNoMapping
	}
	return m, err
}

// hasNoTable reports whether the program that creates a mapping was killed before the mapping got its table:
// the mapping then has no node in /dev, and no process can have it open.
func hasNoTable(m dm.Mapping) (bool, error) {
	size, err := dm.Size(dm.Sys, m.Number)
	return err == nil && size == 0, err
}

// publishedMapping returns the mapping of a raw block volume that its pods get, no matter who created it.
func publishedMapping(d lvm.Device, tags volume.Tags) (dm.Mapping, error) {
	below := d.Number
	if tags.LUKS != "" {
		container, err := containerOf(d, tags)
		if err != nil {
			return dm.Mapping{}, err
		}
		below = container.Number
	}
	m, err := dm.On(dm.Sys, below)
	if err != nil {
		return dm.Mapping{}, err
	}
	if want := dm.BlockName(d.VolumeUUID); m.Name != want {
		return dm.Mapping{}, fmt.Errorf("%w: volume %s/%s has the mapping %s; expected %s; check it with `dmsetup table %s`", ErrDamaged, d.Group, d.Name, m.Name, want, m.Name)
	}
	return m, nil
}

// mappingsOn returns flexlvm's mappings on a logical volume, the lowest first.
func mappingsOn(d lvm.Device) ([]dm.Mapping, error) {
	var all []dm.Mapping
	for below := d.Number; ; {
		m, err := dm.On(dm.Sys, below)
		if errors.Is(err, dm.ErrNoMapping) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all, below = append(all, m), m.Number
	}
}

// openedContent is open for callers without a key: the error is dm.ErrNoMapping if the container is not open,
// or if a raw block volume is not published.
func (e *Engine) openedContent(ctx context.Context, d lvm.Device, tags volume.Tags) (content, error) {
	if tags.LUKS == "" && tags.FSType != volume.Raw {
		return e.contentOf(d, tags), nil
	}
	find := containerOf
	if tags.FSType == volume.Raw {
		find = publishedMapping
	}
	m, err := find(d, tags)
	if err != nil {
		return content{}, err
	}
	c, err := e.contentOn(d, m, tags)
	if err != nil {
		return content{}, err
	}
	return c, e.awaitMapping(ctx, d)
}

// contentOn is contentOf for a mapping of the volume.
func (e *Engine) contentOn(d lvm.Device, m dm.Mapping, tags volume.Tags) (content, error) {
	c := e.contentOf(d, tags)
	c.path, c.number = m.Path, m.Number
	return c, checkNode(m)
}

// checkNode makes sure that the path of a mapping leads to it: a stale node in /dev could lead to another
// volume's. lvm.FindDevice checks the same for the logical volume.
func checkNode(m dm.Mapping) error {
	var st unix.Stat_t
	if err := unix.Stat(m.Path, &st); err != nil {
		return fmt.Errorf("find device %s: %w; run `dmsetup mknodes %s`", m.Path, err, m.Name)
	}
	if st.Rdev != m.Number {
		return fmt.Errorf("find device %s: it leads to device %d:%d, and the mapping is %d:%d; run `dmsetup mknodes %s`", m.Path,
			unix.Major(st.Rdev), unix.Minor(st.Rdev), unix.Major(m.Number), unix.Minor(m.Number), m.Name)
	}
	return nil
}

// volumeByNumber is lvm.DeviceByNumber for mounted devices: it also finds the logical volume below mappings.
func volumeByNumber(number uint64) (lvm.Device, error) {
	for {
		m, err := dm.ByNumber(dm.Sys, number)
		if errors.Is(err, dm.ErrNoMapping) {
			return lvm.DeviceByNumber(number)
		}
		if err != nil {
			return lvm.Device{}, err
		}
		number = m.Device
	}
}

// contentNumbers returns the numbers of all devices that the content of a volume may be mounted from.
func contentNumbers(d lvm.Device) ([]uint64, error) {
	on, err := mappingsOn(d)
	numbers := []uint64{d.Number}
	for _, m := range on {
		numbers = append(numbers, m.Number)
	}
	return numbers, err
}

// mountsOn returns the mounts of a volume's content.
func mountsOn(d lvm.Device, mounted map[uint64][]mount.Point) ([]mount.Point, error) {
	numbers, err := contentNumbers(d)
	if err != nil {
		return nil, err
	}
	var all []mount.Point
	for _, n := range numbers {
		all = append(all, mounted[n]...)
	}
	return all, nil
}

// awaitMapping is awaitResumed for a device and the mappings on it, if there are any.
func (e *Engine) awaitMapping(ctx context.Context, d lvm.Device) error {
	if on, _ := mappingsOn(d); len(on) > 0 {
		top := on[len(on)-1]
		return e.awaitResumed(ctx, lvm.Device{Path: top.Path, Number: top.Number}) // and all devices below it
	}
	return e.awaitResumed(ctx, d)
}

// CloseUnused closes the containers of encrypted volumes, and removes the devices of raw block volumes, that
// are not mounted anywhere: a call was killed after the unmount, or another process had the device open for a
// moment. It skips those that cannot be closed; the error is about devices that could not be checked.
func (e *Engine) CloseUnused(ctx context.Context) error {
	all, failed := dm.Mappings(dm.Sys)
	for _, m := range all {
		if m.Device == 0 {
			failed = errors.Join(failed, e.removeEmptyMapping(ctx, m))
			continue
		}
		d, err := volumeByNumber(m.Device)
		if err != nil {
			if !errors.Is(err, lvm.ErrNoDevice) {
				failed = errors.Join(failed, err)
			}
			continue
		}
		file, key := volumeLock(d.Group, d.Name)
		release, acquired, err := e.locks.Try(file, key)
		if err != nil || !acquired {
			failed = errors.Join(failed, err) // if it is locked, the call that holds the lock closes it
			continue
		}
		failed = errors.Join(failed, e.closeUnused(ctx, d))
		release()
	}
	return failed
}

// closeUnused removes the device of a raw block volume and closes the container on a device, unless it is
// mounted or open. The caller holds the volume's lock.
func (e *Engine) closeUnused(ctx context.Context, d lvm.Device) error {
	on, err := mappingsOn(d)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(on) {
		if err := (lvm.Device{Path: m.Path, Number: m.Number}).CheckResumed(); err != nil {
			return err
		}
		gone := false
		switch m.Name {
		case dm.BlockName(d.VolumeUUID):
			gone, err = e.removeUnusedMapping(ctx, m)
		case dm.CryptName(d.VolumeUUID), dm.BlockCryptName(d.VolumeUUID):
			gone, err = e.closeContainer(ctx, m)
		default: // another program's mapping
		}
		if err != nil || !gone {
			return err
		}
	}
	return nil
}

// removeEmptyMapping removes a mapping that a killed program has left without a table. The kernel does not link it
// to its volume; only its name does. Since Linux 5.15 sysfs shows such a mapping only if it once had a table; only the
// next mount removes others.
func (e *Engine) removeEmptyMapping(ctx context.Context, m dm.Mapping) error {
	d, err := volumeOfMapping(m.Name)
	switch {
	case err == nil:
		release, acquired, err := e.locks.Try(volumeLock(d.Group, d.Name))
		if err != nil || !acquired {
			return err // the call that holds the lock may be creating the mapping
		}
		defer release()
	case !errors.Is(err, lvm.ErrNoDevice):
		return err
	default:
		// The volume was inactive or gone when the devices were listed, so no call was creating the mapping. A call that has
		// activated the volume since fails if it loses its mapping here, and is retried.
	}
	_, lookErr := dm.ByNumber(dm.Sys, m.Number)
	if !errors.Is(lookErr, dm.ErrOnNothing) {
		return nil // it is gone or complete by now
	}
	removed, err := dm.RemoveEmpty(ctx, e.host.Unkillable, m.Name)
	if err == nil && !removed {
		err = lookErr
	}
	return err
}

// volumeOfMapping returns the device of the active volume that a mapping belongs to by its name.
func volumeOfMapping(name string) (lvm.Device, error) {
	all, err := lvm.Devices()
	if err != nil {
		return lvm.Device{}, err
	}
	for _, d := range all {
		if slices.Contains([]string{dm.CryptName(d.VolumeUUID), dm.BlockCryptName(d.VolumeUUID), dm.BlockName(d.VolumeUUID)}, name) {
			return d, nil
		}
	}
	return lvm.Device{}, fmt.Errorf("%w: no active volume has the mapping %s", lvm.ErrNoDevice, name)
}

// removeUnusedMapping removes the mapping of a raw block volume, or one of a container that was never opened,
// unless its node is mounted here or a process has it open. It reports whether the mapping is gone.
func (e *Engine) removeUnusedMapping(ctx context.Context, m dm.Mapping) (gone bool, err error) {
	mounted, err := mount.ByDevice()
	if err != nil || len(mounted[m.Number]) > 0 {
		return false, err
	}
	if err := dm.Remove(ctx, e.host.Unkillable, m.Name); err != nil {
		if errors.Is(err, dm.ErrBusy) {
			return false, nil
		}
		return false, fmt.Errorf("remove the device %s: %w", m.Name, err)
	}
	e.after("remove mapping")
	return true, nil
}

// closeContainer closes a container that is not in use, and reports whether it is gone.
func (e *Engine) closeContainer(ctx context.Context, m dm.Mapping) (gone bool, err error) {
	noTable, err := hasNoTable(m)
	if err != nil {
		return false, err
	}
	if noTable {
		return e.removeUnusedMapping(ctx, m)
	}
	if err := checkNode(m); err != nil {
		return false, err
	}
	// Exclusive: the kernel refuses a device that is mounted in any namespace.
	f, err := os.OpenFile(m.Path, os.O_RDONLY|unix.O_EXCL, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("open mapping: %w", err)
	}
	if err := f.Close(); err != nil {
		return false, fmt.Errorf("close mapping: %w", err)
	}
	if err := luks.Close(ctx, e.host.Unkillable, m.Name); err != nil {
		if errors.Is(err, luks.ErrBusy) {
			return false, nil
		}
		return false, err
	}
	e.after("luksClose")
	return true, nil
}

// closeAfter is closeUnused at the end of a call that has succeeded or failed. A mapping that stays open is
// closed later, and does not fail the call.
func (e *Engine) closeAfter(ctx context.Context, d lvm.Device) {
	if err := e.closeUnused(ctx, d); err != nil {
		e.log.WithError(err).WithField("volume", string(d.Group)+"/"+string(d.Name)).
			Warn("the volume is not in use and its mapping was not closed; that is retried")
	}
}
