package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoKey: an encrypted volume was asked for without its key.
var ErrNoKey = errors.New("no key")

func noKey(g volume.Group, n volume.Name) error {
	return fmt.Errorf("%w: volume %s/%s is encrypted, and the call brings no key; kubelet passes it on where the PersistentVolume names its Secret (nodePublishSecretRef, and nodeExpandSecretRef for growth)", ErrNoKey, g, n)
}

// header reports whether the device holds the container of the tags. Like checkFilesystem it
// returns false without an error only for a volume that may be formatted: one in state
// creating that was never handed out, on whose device no container was finished, which gets
// its UUID last. In that state no pod has had it, whatever became of this node's records (handOut).
func header(lv lvm.LogicalVolume, tags volume.Tags, d lvm.Device, handedOut bool) (bool, error) {
	h, err := readHeader(d.Path)
	switch {
	case err == nil && h.UUID == tags.LUKS:
		return true, nil
	case err != nil && !errors.Is(err, luks.ErrNoHeader):
		return false, err
	case tags.State != volume.Creating || handedOut || tags.Clone != "":
		return false, undecipherable(lv, tags, h, err)
	}
	return false, nil
}

func undecipherable(lv lvm.LogicalVolume, t volume.Tags, h luks.Header, err error) error {
	what := fmt.Sprintf("its LUKS2 header has UUID %s", h.UUID)
	if err != nil {
		what = err.Error()
	}
	return fmt.Errorf("%w: volume %s/%s is %s and should hold the encrypted volume %s, but %s; it is not formatted again, and without its header nobody can read it: restore that (`cryptsetup luksHeaderRestore`), or the data from a backup", ErrDamaged, lv.Group, lv.Name, t.State, t.LUKS, what)
}

func readHeader(device string) (luks.Header, error) {
	f, err := os.Open(device)
	if err != nil {
		return luks.Header{}, fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = f.Close() }()
	return luks.ReadHeader(f)
}

// encrypt makes the container of a volume. Only create and adopt call it, and only in state
// creating: the tags were read under this volume's lock.
func (e *Engine) encrypt(ctx context.Context, spec volume.Spec, d lvm.Device, tags volume.Tags, key luks.Key) error {
	if tags.State != volume.Creating {
		return fmt.Errorf("refusing to format %s/%s: its state is %s", spec.Group, spec.Name, tags.State)
	}
	if spec.CloneOf != "" || tags.Clone != "" {
		return refused("volume %s/%s is not formatted: it is to be a copy, of %s %q", spec.Group, spec.Name, volume.OptionCloneOf, spec.CloneOf)
	}
	if err := luks.Format(ctx, e.host.Killable, d.Path, key); err != nil {
		return err
	}
	e.after("luksFormat")
	if err := luks.SetUUID(ctx, e.host.Killable, d.Path, tags.LUKS); err != nil {
		return err
	}
	// Before anything lies in it: without its header nobody can read that.
	if err := e.lvm.Flush(ctx, d.Group, d.Name); err != nil {
		return err
	}
	e.after("set LUKS UUID")
	return nil
}

// decipher returns the content of a volume that was looked up, opened, and makes its container
// where a call was killed before that was finished. What header says decides.
func (e *Engine) decipher(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, f found, handedOut bool) (content, error) {
	if f.tags.LUKS == "" {
		return e.contentOf(f.device, f.tags), nil
	}
	whole, err := header(lv, f.tags, f.device, handedOut)
	switch {
	case err != nil:
		return content{}, err
	case !whole && spec.FS != "":
		return content{}, undecipherable(lv, f.tags, luks.Header{}, luks.ErrNoHeader)
	case !whole:
		if err := e.encrypt(ctx, spec, f.device, f.tags, f.key); err != nil {
			return content{}, err
		}
	}
	return e.open(ctx, f.device, f.tags, f.key)
}

// open returns the content of a volume whose device holds the container of the tags. The
// container is opened where that has not been done, and its key checked in any case, so that
// a wrong one is found out by its first use and not by the first after a boot. The mapping
// follows a device that has grown.
func (e *Engine) open(ctx context.Context, d lvm.Device, tags volume.Tags, key luks.Key) (content, error) {
	if tags.LUKS == "" {
		return e.contentOf(d, tags), nil
	}
	if key.IsZero() {
		return content{}, noKey(d.Group, d.Name)
	}
	m, err := mappingOf(d, tags)
	switch {
	case errors.Is(err, dm.ErrNoMapping):
		// Unkillable, as LVM: cut short, it would leave half a device.
		if err := luks.Open(ctx, e.host.Unkillable, d.Path, dm.CryptName(d.VolumeUUID), key); err != nil {
			return content{}, wrongKey(d, err)
		}
		e.after("luksOpen")
		if m, err = mappingOf(d, tags); err != nil {
			return content{}, fmt.Errorf("cryptsetup has opened %s and its mapping cannot be used: %w", d.Path, err)
		}
	case err != nil:
		return content{}, err
	default:
		if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
			return content{}, wrongKey(d, err)
		}
	}
	c, err := e.contentOn(m, tags)
	if err != nil {
		return content{}, err
	}
	if err := awaitMapping(ctx, d); err != nil {
		return content{}, err
	}
	return c, e.stretch(ctx, d, c, key)
}

func wrongKey(d lvm.Device, err error) error {
	if !errors.Is(err, luks.ErrWrongKey) {
		return err
	}
	return fmt.Errorf("the key of volume %s/%s is wrong, and nothing was changed: the Secret that its PersistentVolume names must hold the key that it was made with (a copy: that of what it was copied from): %w", d.Group, d.Name, err)
}

// opened is open for callers without a key: the error is dm.ErrNoMapping if the container
// is not open, or a raw block volume is not handed out.
func (e *Engine) opened(ctx context.Context, d lvm.Device, tags volume.Tags) (content, error) {
	if tags.LUKS == "" && tags.FSType != volume.Raw {
		return e.contentOf(d, tags), nil
	}
	m, err := mappingOf(d, tags)
	if err != nil {
		return content{}, err
	}
	c, err := e.contentOn(m, tags)
	if err != nil {
		return content{}, err
	}
	return c, awaitMapping(ctx, d)
}

// contentOn is contentOf on the mapping of an encrypted volume.
func (e *Engine) contentOn(m dm.Mapping, tags volume.Tags) (content, error) {
	return e.contentOf(lvm.Device{Path: m.Path, Number: m.Number}, tags), checkNode(m)
}

// checkNode makes sure that the path of a mapping leads to it: a stale node in /dev could lead
// to another volume's. lvm.FindDevice checks that of the logical volume.
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

// mappingOf returns the mapping of the container of the tags, or of the raw block volume that
// it is, whoever has made it.
func mappingOf(d lvm.Device, tags volume.Tags) (dm.Mapping, error) {
	m, err := dm.On(dm.Sys, d.Number)
	if err != nil {
		return dm.Mapping{}, err
	}
	if tags.FSType == volume.Raw {
		return m, checkBlockMapping(d, m)
	}
	if m.Name != dm.CryptName(d.VolumeUUID) || m.UUID != tags.LUKS {
		return dm.Mapping{}, fmt.Errorf("%w: on volume %s/%s stands the mapping %s of the encrypted volume %s, and it should be %s; look at it with `cryptsetup status %s`, and close it", ErrDamaged, d.Group, d.Name, m.Name, m.UUID, tags.LUKS, m.Name)
	}
	return m, nil
}

// stretch makes the content of an encrypted volume as large as its device.
func (e *Engine) stretch(ctx context.Context, d lvm.Device, c content, key luks.Key) error {
	if c.number == d.Number {
		return nil
	}
	device, err := deviceSize(d.Path)
	if err != nil {
		return err
	}
	size, err := deviceSize(c.path)
	if err != nil {
		return err
	}
	if size >= device-volume.LUKSHeader {
		return nil
	}
	if err := luks.Resize(ctx, e.host.Unkillable, dm.CryptName(d.VolumeUUID), key); err != nil {
		return wrongKey(d, err)
	}
	e.after("luksResize")
	return nil
}

// volumeByNumber is lvm.DeviceByNumber for what is mounted: also of the logical volume below
// a mapping.
func volumeByNumber(number uint64) (lvm.Device, error) {
	m, err := dm.ByNumber(dm.Sys, number)
	if errors.Is(err, dm.ErrNoMapping) {
		return lvm.DeviceByNumber(number)
	}
	if err != nil {
		return lvm.Device{}, err
	}
	return lvm.DeviceByNumber(m.Device)
}

// contentNumbers are those that the file system on a device may be mounted by.
func contentNumbers(d lvm.Device) ([]uint64, error) {
	m, err := dm.On(dm.Sys, d.Number)
	if errors.Is(err, dm.ErrNoMapping) {
		return []uint64{d.Number}, nil
	}
	return []uint64{d.Number, m.Number}, err
}

// mountsOn returns the mounts of the file system on a device.
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

// awaitMapping is awaitResumed for the mapping on a device as well, if there is one.
func awaitMapping(ctx context.Context, d lvm.Device) error {
	if m, err := dm.On(dm.Sys, d.Number); err == nil {
		return awaitResumed(ctx, lvm.Device{Path: m.Path, Number: m.Number}) // and what is below
	}
	return awaitResumed(ctx, d)
}

// CloseUnused closes the encrypted volumes, and takes back the devices of raw block volumes,
// that nobody has mounted: a call was killed between the unmount and that, or somebody had the
// device open for a moment. What cannot be closed is left; the error is about what could not be
// looked at.
func (e *Engine) CloseUnused(ctx context.Context) error {
	all, failed := dm.Mappings(dm.Sys)
	for _, m := range all {
		d, err := lvm.DeviceByNumber(m.Device)
		if err != nil {
			if !errors.Is(err, lvm.ErrNoDevice) {
				failed = errors.Join(failed, err)
			}
			continue
		}
		file, key := volumeLock(d.Group, d.Name)
		release, free, err := e.locks.Try(file, key)
		if err != nil || !free {
			failed = errors.Join(failed, err) // whoever works on it closes it
			continue
		}
		failed = errors.Join(failed, e.closeUnused(ctx, d))
		release()
	}
	return failed
}

// closeUnused closes the container on a device, or takes back the device of a raw block volume,
// under its volume's lock, unless somebody has it mounted or open.
func (e *Engine) closeUnused(ctx context.Context, d lvm.Device) error {
	m, err := dm.On(dm.Sys, d.Number)
	if errors.Is(err, dm.ErrNoMapping) {
		return nil
	}
	if err != nil {
		return err
	}
	block := m.Name == dm.BlockName(d.VolumeUUID)
	if !block && m.Name != dm.CryptName(d.VolumeUUID) {
		return nil // somebody else's
	}
	if err := (lvm.Device{Path: m.Path, Number: m.Number}).CheckResumed(); err != nil {
		return err
	}
	if block {
		return e.takeBack(ctx, m)
	}
	if err := checkNode(m); err != nil {
		return err
	}
	// Exclusively: the kernel refuses a device that is mounted, in whichever namespace.
	f, err := os.OpenFile(m.Path, os.O_RDONLY|unix.O_EXCL, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil
	case err != nil:
		return fmt.Errorf("open mapping: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close mapping: %w", err)
	}
	if err := luks.Close(ctx, e.host.Unkillable, m.Name); err != nil && !errors.Is(err, luks.ErrBusy) {
		return err
	}
	e.after("luksClose")
	return nil
}

// closeAfter is closeUnused where a call has done or failed at something else: what is left
// open is closed later, and no reason to fail.
func (e *Engine) closeAfter(ctx context.Context, d lvm.Device) {
	if err := e.closeUnused(ctx, d); err != nil {
		e.log.WithError(err).WithField("volume", string(d.Group)+"/"+string(d.Name)).
			Warn("the volume is not in use and its mapping was not closed; that is tried again")
	}
}

// checkSource checks that a volume holds what is to be copied, and, where it is encrypted,
// that the copy can be opened: with the key that its source has. A snapshot is not opened, and
// taken without the key. The content has no path where the source is not open: there is nothing
// to be written back.
func (e *Engine) checkSource(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, d lvm.Device, key luks.Key) (content, error) {
	switch {
	case tags.FSType == volume.Raw:
	case tags.LUKS == "":
		c := e.contentOf(d, tags)
		_, err := checkFilesystem(lv, tags, c, true)
		return c, err
	default:
		if _, err := header(lv, tags, d, true); err != nil {
			return content{}, err
		}
	}
	if tags.LUKS != "" && spec.Kind != volume.Snapshot && spec.Layout == volume.Thin { // a full copy is made before the key is there
		if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
			return content{}, wrongKey(d, err)
		}
	}
	c, err := e.opened(ctx, d, tags)
	if errors.Is(err, dm.ErrNoMapping) {
		err = nil
	}
	return c, err
}

// openCopy opens a copy that was just taken, as a container with the UUID of its tags.
func (e *Engine) openCopy(ctx context.Context, f found) (content, error) {
	if f.tags.LUKS == "" {
		return e.contentOf(f.device, f.tags), nil
	}
	if err := luks.SetUUID(ctx, e.host.Killable, f.device.Path, f.tags.LUKS); err != nil {
		return content{}, err
	}
	e.after("set LUKS UUID")
	on, err := e.open(ctx, f.device, f.tags, f.key)
	if err != nil {
		return content{}, err
	}
	if id, err := on.uuid(on.path); err != nil || id != f.tags.Clone {
		return content{}, errors.Join(err, fmt.Errorf("it should hold the file system %s, and holds %q", f.tags.Clone, id))
	}
	return on, nil
}
