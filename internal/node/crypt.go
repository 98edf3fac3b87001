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
	if tags.Zeroed > 0 { // through a container that is gone: with another key that is noise
		return fmt.Errorf("%w: volume %s/%s was zeroed in part, and its container is gone since; no pod has had it: delete its claim, and look at its disk", ErrDamaged, spec.Group, spec.Name)
	}
	if err := luks.Format(ctx, e.host.Killable, d.Path, key); err != nil {
		return err
	}
	// The UUID says that the container is finished, so it must reach the disk last.
	if err := durable.Sync(d.Path); err != nil {
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
	if err := awaitMapping(ctx, d); err != nil {
		return content{}, err
	}
	return c, e.stretch(ctx, d, c, key)
}

func (e *Engine) openContainer(ctx context.Context, d lvm.Device, tags volume.Tags, key luks.Key) error {
	open := func() error {
		// Unkillable, as LVM: cut short, it would leave half a device.
		return luks.Open(ctx, e.host.Unkillable, d.Path, cryptName(d, tags), key)
	}
	if tags.FSType != volume.Raw || tags.State == volume.Creating && tags.Clone == "" {
		return open()
	}
	// It shows what pods have written: see expose. A wrong key does not keep LVM from others.
	if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
		return err
	}
	return e.lvm.Alone(ctx, open)
}

func wrongKey(d lvm.Device, err error) error {
	if !errors.Is(err, luks.ErrWrongKey) {
		return err
	}
	return fmt.Errorf("the key of volume %s/%s is wrong, and nothing was changed: the Secret that its PersistentVolume names must hold the key that it was made with (a copy: that of what it was copied from): %w", d.Group, d.Name, err)
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
	if err := luks.Resize(ctx, e.host.Unkillable, filepath.Base(c.path), key); err != nil {
		return wrongKey(d, err)
	}
	e.after("luksResize")
	return nil
}

// checkSource checks that a volume holds what is to be copied, and, where it is encrypted,
// that the copy can be opened: with the key that its source has. A snapshot is not opened, and
// taken without the key. The content has no path where the source is not open: there is nothing
// to be written back.
func (e *Engine) checkSource(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, d lvm.Device, key luks.Key) (content, error) {
	switch {
	case tags.LUKS != "":
		if _, err := header(lv, tags, d, true); err != nil {
			return content{}, err
		}
	case tags.FSType != volume.Raw:
		c := e.contentOf(d, tags)
		_, err := checkFilesystem(lv, tags, c, true)
		return c, err
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
	// Tags that say ready must not be on the disk before it: nobody could open the volume.
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
