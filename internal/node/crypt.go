package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNoKey: the call brings no key for an encrypted volume.
var ErrNoKey = errors.New("no key")

func noKeyErr(g volume.Group, n volume.Name) error {
	return fmt.Errorf("%w: volume %s/%s is encrypted, and the call brings no key; kubelet passes it on where the PersistentVolume names its Secret (nodePublishSecretRef, and nodeExpandSecretRef for growth)", ErrNoKey, g, n)
}

// checkHeader reports whether the device holds the LUKS container that the tags name. Like checkFilesystem, it
// returns false without an error only for a volume that may be formatted: one in state creating that was
// never handed out and whose container was not finished; a container gets its UUID last. No pod has ever had
// an encrypted volume in that state, whatever became of this node's records (recordMountable).
func checkHeader(lv lvm.LogicalVolume, tags volume.Tags, d lvm.Device, mayHoldData bool) (bool, error) {
	h, err := readHeader(d.Path)
	switch {
	case err == nil && h.UUID == tags.LUKS:
		return true, nil
	case err != nil && !errors.Is(err, luks.ErrNoHeader):
		return false, explainDeviceError(lv, err)
	case tags.State != volume.Creating || mayHoldData || tags.Clone != "":
		return false, damagedHeaderErr(lv, tags, h, err)
	}
	return false, nil
}

func damagedHeaderErr(lv lvm.LogicalVolume, t volume.Tags, h luks.Header, err error) error {
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

// encrypt formats the LUKS container of a volume. Only create and openOrFormatContainer call it, and only in
// state creating: the tags were read under this volume's lock.
func (e *Engine) encrypt(ctx context.Context, spec volume.Spec, d lvm.Device, tags volume.Tags, key luks.Key) error {
	if tags.State != volume.Creating {
		return fmt.Errorf("refusing to format %s/%s: its state is %s", spec.Group, spec.Name, tags.State)
	}
	if spec.CloneOf != "" || tags.Clone != "" {
		return refused("volume %s/%s is not formatted: it is to be a copy, of %s %q", spec.Group, spec.Name, volume.OptionCloneOf, spec.CloneOf)
	}
	if tags.Zeroed > 0 { // zeroed through a container that is gone: with another key, the zeros read as noise
		return fmt.Errorf("%w: volume %s/%s was zeroed in part, and its container is gone since; no pod has had it: delete its claim, and check its disk", ErrDamaged, spec.Group, spec.Name)
	}
	if err := luks.Format(ctx, e.host.Killable, d.Path, key); err != nil {
		return err
	}
	// The UUID marks the container as finished, so it must reach the disk last.
	if err := durable.Sync(d.Path); err != nil {
		return err
	}
	e.after("luksFormat")
	if err := luks.SetUUID(ctx, e.host.Killable, d.Path, tags.LUKS); err != nil {
		return err
	}
	// Flush before anything is written into the container: without its header nobody can read that data.
	if err := e.lvm.Flush(ctx, d.Group, d.Name); err != nil {
		return err
	}
	e.after("set LUKS UUID")
	return nil
}

// openOrFormatContainer returns the opened content of a volume that was looked up. If checkHeader reports that
// a killed call left the container unfinished, openOrFormatContainer formats it.
func (e *Engine) openOrFormatContainer(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, f openedVolume, mayHoldData bool) (content, error) {
	if f.tags.LUKS == "" {
		return e.contentOf(f.device, f.tags), nil
	}
	whole, err := checkHeader(lv, f.tags, f.device, mayHoldData)
	switch {
	case err != nil:
		return content{}, err
	case !whole && spec.FS != "":
		return content{}, damagedHeaderErr(lv, f.tags, luks.Header{}, luks.ErrNoHeader)
	case !whole:
		if err := e.encrypt(ctx, spec, f.device, f.tags, f.key); err != nil {
			return content{}, err
		}
	}
	return e.open(ctx, f.device, f.tags, f.key)
}

// open returns the content of a volume whose device holds the container that the tags name. It opens the
// container unless that is open already, and checks the key in any case, so that a wrong key fails at its
// first use and not at the first use after a boot. The mapping follows a device that has grown.
func (e *Engine) open(ctx context.Context, d lvm.Device, tags volume.Tags, key luks.Key) (content, error) {
	if tags.LUKS == "" {
		return e.contentOf(d, tags), nil
	}
	if key.IsZero() {
		return content{}, noKeyErr(d.Group, d.Name)
	}
	m, err := e.openContainerOf(ctx, d, tags)
	switch {
	case errors.Is(err, dm.ErrNoMapping):
		if err := e.openContainer(ctx, d, tags, key); err != nil {
			return content{}, wrongKey(d, err)
		}
		e.after("luksOpen")
		if m, err = containerOf(d, tags); err != nil {
			return content{}, fmt.Errorf("cryptsetup has opened %s and its mapping cannot be used: %w", d.Path, err)
		}
	case err != nil:
		return content{}, err
	default:
		if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
			return content{}, wrongKey(d, err)
		}
	}
	c, err := e.contentOn(d, m, tags)
	if err != nil {
		return content{}, err
	}
	if err := e.awaitMapping(ctx, d); err != nil {
		return content{}, err
	}
	return c, e.resizeContainer(ctx, d, c, key)
}

func (e *Engine) openContainer(ctx context.Context, d lvm.Device, tags volume.Tags, key luks.Key) error {
	name := cryptName(d, tags)
	open := func() error {
		// Unkillable, like LVM's commands: a killed cryptsetup would leave a half-made device.
		return luks.Open(ctx, e.host.Unkillable, d.Path, name, key)
	}
	openOverEmpty := func() error {
		err := open()
		if !errors.Is(err, luks.ErrBusy) {
			return err
		}
		// A mapping without a table has the name; openContainerOf finds only those that have one.
		removed, failed := dm.RemoveEmpty(ctx, e.host.Unkillable, name)
		switch {
		case failed != nil:
			e.log.WithError(failed).WithField("mapping", name).Warn("a killed call may have left this mapping, and it was not removed")
		case !removed:
			return err
		}
		return open() // also after a failure: the mapping may have vanished, and then it has no information
	}
	if tags.FSType != volume.Raw || tags.State == volume.Creating && tags.Clone == "" {
		return openOverEmpty()
	}
	// The mapping exposes data that pods have written, so LVM must not run meanwhile (see ensureMapping). The
	// key is checked first, so that a wrong key does not block other calls' LVM commands.
	if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
		return err
	}
	return e.lvm.Alone(ctx, openOverEmpty)
}

func wrongKey(d lvm.Device, err error) error {
	if !errors.Is(err, luks.ErrWrongKey) {
		return err
	}
	return fmt.Errorf("the key of volume %s/%s is wrong, and nothing was changed: the Secret that its PersistentVolume names must hold the key that it was created with (for a copy, the key of its source): %w", d.Group, d.Name, err)
}

// resizeContainer grows the opened container of an encrypted volume to the size of its device.
func (e *Engine) resizeContainer(ctx context.Context, d lvm.Device, c content, key luks.Key) error {
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
	if _, err := e.committedSize(ctx, d, d.Path); err != nil {
		return err
	}
	if err := luks.Resize(ctx, e.host.Unkillable, filepath.Base(c.path), key); err != nil {
		return wrongKey(d, err)
	}
	e.after("luksResize")
	return nil
}

// checkSource checks that a volume holds the content to be copied and, if it is encrypted, that the source's
// key opens the copy. A snapshot is not opened, so taking it needs no key. The returned content has no path
// if the source is not open: then there is nothing to write back.
func (e *Engine) checkSource(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, d lvm.Device, key luks.Key) (content, error) {
	switch {
	case tags.LUKS != "":
		if _, err := checkHeader(lv, tags, d, true); err != nil {
			return content{}, err
		}
	case tags.FSType != volume.Raw:
		c := e.contentOf(d, tags)
		_, err := checkFilesystem(lv, tags, c, true)
		return c, err
	}
	if tags.LUKS != "" && spec.Kind != volume.Snapshot && spec.Layout == volume.Thin { // a full copy is created before its key is known
		if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
			return content{}, wrongKey(d, err)
		}
	}
	c, err := e.openedContent(ctx, d, tags)
	if errors.Is(err, dm.ErrNoMapping) {
		err = nil
	}
	return c, err
}

// openCopy gives the container of a new copy the UUID of its tags, and opens it.
func (e *Engine) openCopy(ctx context.Context, f openedVolume) (content, error) {
	if f.tags.LUKS == "" {
		return e.contentOf(f.device, f.tags), nil
	}
	h, err := readHeader(f.device.Path)
	if err != nil {
		return content{}, err
	}
	if h.UUID != f.tags.LUKS {
		if err := luks.SetUUID(ctx, e.host.Killable, f.device.Path, f.tags.LUKS); err != nil {
			return content{}, err
		}
		e.after("set LUKS UUID")
	}
	// The UUID must be on the disk before tags that say ready; otherwise nobody could open the volume.
	if err := durable.Sync(f.device.Path); err != nil {
		return content{}, err
	}
	on, err := e.open(ctx, f.device, f.tags, f.key)
	if err != nil || f.tags.FSType == volume.Raw {
		return on, err
	}
	f.content = on
	return on, holdsClone(f)
}
