package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// copyStep is how much is read and written in one step.
	copyStep = volume.MiB
	// copyPart is how much is copied at most before it is synced to the disk.
	copyPart = 64 * volume.MiB
)

// ErrNotCopied: the volume starts as a full copy that is not complete yet.
var ErrNotCopied = errors.New("not copied yet")

func notCopiedErr(spec volume.Spec) error {
	return fmt.Errorf("%w: volume %s/%s begins as a full copy of snapshot %s, which the node daemon makes; this call is retried", ErrNotCopied, spec.Group, spec.Name, spec.CloneOf)
}

// createFullCopy creates the volume of a thick spec as a byte-by-byte copy of a copy-on-write snapshot, as fast as
// Config.WipeRate allows. No pod gets the volume before the copy is complete and on the disk. It then becomes
// a volume of its own; an encrypted one does at its first mount, which brings the key.
//
// Killed before, it leaves a partial copy, which the next call discards. After every holdTime it yields the
// volume's lock, for example to a call that releases the volume, which ends this one.
func (e *Engine) createFullCopy(ctx context.Context, spec volume.Spec) error {
	c, err := e.openSnapshot(ctx, spec)
	if err != nil {
		// A copy whose data is complete no longer needs its source.
		if there, ferr := e.finishCopied(ctx, spec); there || errors.Is(ferr, ErrBusy) {
			return ferr
		}
		return err
	}
	defer func() { _ = c.from.Close() }()
	for {
		done, err := e.copyMore(ctx, &c)
		begunAndBusy := c.uuid != "" && errors.Is(err, ErrBusy) && ctx.Err() == nil // a new call would start over
		if done || err != nil && !begunAndBusy {
			return err
		}
		if err := lock.Yield(ctx); err != nil {
			return err
		}
	}
}

// A fullCopy is a full copy in progress.
type fullCopy struct {
	spec       volume.Spec
	from       *os.File // the snapshot's device; while it is open, LVM does not remove it
	fromID     string   // the snapshot's LVM UUID
	sourceTags volume.Tags
	size       volume.Bytes // how much of the snapshot is copied
	uuid       string       // of the new volume; empty before the first part
	at         volume.Bytes
}

// openSnapshot opens the snapshot that is to be copied.
func (e *Engine) openSnapshot(ctx context.Context, spec volume.Spec) (c fullCopy, err error) {
	err = e.withSourceLock(ctx, spec.Group, spec.CloneOf, func() error {
		lv, tags, _, err := e.source(ctx, spec, luks.Key{})
		if err != nil {
			return err
		}
		d, err := e.activeDevice(ctx, lv)
		if err != nil {
			return err
		}
		size, err := deviceSize(d.Path)
		if err != nil {
			return err
		}
		c = fullCopy{spec: spec, fromID: lv.UUID, sourceTags: tags, size: tags.Copied(size)}
		origin, err := e.lvm.Volume(ctx, lv.Group, lv.Origin)
		if err != nil {
			return err
		}
		if err := checkFullCopyCharge(&c, origin); err != nil {
			return err
		}
		if c.from, err = os.Open(d.Path); err != nil {
			return fmt.Errorf("open device: %w", err)
		}
		return nil
	})
	return c, err
}

// finishCopied finishes a full copy whose source can no longer be copied. there reports whether the volume
// exists and no longer needs its source.
func (e *Engine) finishCopied(ctx context.Context, spec volume.Spec) (there bool, err error) {
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, spec.Group, spec.Name)
	if err != nil {
		return false, err
	}
	defer release()
	lv, tags, err := e.lookUpAdmitted(ctx, spec)
	switch {
	case err != nil || tags.Clone != "" && tags.Fill != volume.FillCopied:
		return false, err
	case tags.Clone == "" || tags.LUKS != "":
		return true, nil
	}
	if err := e.checkUnrecorded(lv); err != nil {
		return true, err
	}
	_, err = e.finishFullCopy(ctx, spec, lv, tags, luks.Key{})
	return true, err
}

// copyMore copies for about holdTime, and reports whether the volume is complete.
func (e *Engine) copyMore(ctx context.Context, c *fullCopy) (bool, error) {
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, c.spec.Group, c.spec.Name)
	if err != nil {
		return false, err
	}
	defer release()
	lv, tags, err := e.findOrCreateCopy(ctx, c)
	if err != nil || tags.Clone == "" {
		return err == nil, err
	}
	if tags.Fill == volume.FillCopying {
		if whole, err := e.copyParts(ctx, c, lv); err != nil || !whole {
			return false, err
		}
		if err := e.confirmSourceValid(ctx, c); err != nil {
			return false, err
		}
		if err := e.lvm.Retag(ctx, lv, []string{volume.FillCopying.Tag()}, []string{volume.FillCopied.Tag()}); err != nil {
			return false, err
		}
		e.after("tag copied")
		tags.Fill = volume.FillCopied
	}
	if tags.LUKS != "" {
		return true, nil
	}
	_, err = e.finishFullCopy(ctx, c.spec, lv, tags, luks.Key{})
	return err == nil, err
}

// confirmSourceValid makes sure that the snapshot was valid until its last byte was read. While a snapshot
// overflows, a concurrent read may return the current content of its source. A mirror may have gone over to an
// outdated copy.
func (e *Engine) confirmSourceValid(ctx context.Context, c *fullCopy) error {
	lv, err := e.lvm.Volume(ctx, c.spec.Group, c.spec.CloneOf)
	if err != nil {
		return err
	}
	if err := e.checkSourceValid(c, lv); err != nil {
		return err
	}
	return e.checkCopies(ctx, lv)
}

// checkSourceValid decides, from lv, the snapshot after the last read, whether the bytes that were read are the
// snapshot's. LVM cannot tell whether an inactive snapshot has overflowed.
func (e *Engine) checkSourceValid(c *fullCopy, lv lvm.LogicalVolume) error {
	if lv.UUID != c.fromID || !lv.Active {
		return refused("snapshot %s/%s was replaced or deactivated, so it is unknown whether it was valid until the end of the copy; the copy starts again", c.spec.Group, c.spec.CloneOf)
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return err
	}
	if err := e.noteInvalid(lv); err != nil {
		return err
	}
	return e.checkCopyableNow(c.spec, lv, tags)
}

// findOrCreateCopy returns the volume of a full copy, and creates it if necessary. It discards a partial copy
// of an earlier call.
func (e *Engine) findOrCreateCopy(ctx context.Context, c *fullCopy) (lvm.LogicalVolume, volume.Tags, error) {
	lv, tags, err := e.lookUpAdmitted(ctx, c.spec)
	if c.uuid != "" { // the copy continues
		if err == nil && (lv.UUID != c.uuid || tags.Fill != volume.FillCopying) {
			err = refused("volume %s/%s was replaced, or is %s; this call copies no more into it", lv.Group, lv.Name, tags.State)
		}
		return lv, tags, err
	}
	if errors.Is(err, lvm.ErrNoVolume) && !errors.Is(err, ErrLost) {
		return e.createCopyVolume(ctx, c)
	}
	if err != nil || tags.Clone == "" {
		return lv, tags, err
	}
	if err := e.checkUnrecorded(lv); err != nil || tags.Fill == volume.FillCopied && tags.Clone == c.sourceTags.FS {
		return lv, tags, err
	}
	if err := e.removeIncomplete(ctx, c.spec, lv); err != nil {
		return lv, tags, err
	}
	return e.createCopyVolume(ctx, c)
}

func (e *Engine) createCopyVolume(ctx context.Context, c *fullCopy) (lvm.LogicalVolume, volume.Tags, error) {
	fail := func(err error) (lvm.LogicalVolume, volume.Tags, error) {
		return lvm.LogicalVolume{}, volume.Tags{}, err
	}
	if err := e.checkGroupUUID(ctx, c.spec); err != nil {
		return fail(err)
	}
	if err := checkGrowable(lvm.LogicalVolume{Group: c.spec.Group, Name: c.spec.CloneOf}, c.sourceTags, c.spec.Size); err != nil {
		return fail(fmt.Errorf("copy snapshot: %w; or ask for a copy of no more than it has", err))
	}
	tags, err := newTags(c.spec)
	if err != nil {
		return fail(err)
	}
	tags.Clone, tags.Fill, tags.Fixed = c.sourceTags.FS, volume.FillCopying, c.sourceTags.Fixed
	if tags.LUKS != "" && tags.FSType == volume.Raw {
		tags.Zeroed = c.sourceTags.Size.RoundUp(volume.Block) // finishRaw zeroes the rest, with the key
	}
	if err := e.lvm.Create(ctx, lvm.LogicalVolume{
		Group: c.spec.Group, Name: c.spec.Name, Tags: tags.Strings(), Size: max(c.spec.DeviceSize(), c.size), Shape: c.spec.Shape(),
	}); err != nil {
		return fail(err)
	}
	e.after("lvcreate")
	lv, err := e.lvm.Volume(ctx, c.spec.Group, c.spec.Name)
	c.uuid, c.at = lv.UUID, 0
	return lv, tags, err
}

// copyParts copies at least one part, for about holdTime, and reports whether the copy is complete.
func (e *Engine) copyParts(ctx context.Context, c *fullCopy, lv lvm.LogicalVolume) (whole bool, err error) {
	for begun := time.Now(); ; {
		if whole, err = e.copyPart(ctx, c, lv); whole || err != nil || time.Since(begun) >= holdTime {
			return whole, err
		}
	}
}

// partAt returns the size of a part.
func partAt(rate volume.Bytes) volume.Bytes {
	if rate <= 0 {
		return copyPart
	}
	return min(copyPart, max(rate*volume.Bytes(holdTime/time.Second), copyStep))
}

// copyPart copies the next part, syncs it to the disk, and reports whether it was the last. Beyond the
// snapshot's content, a raw block volume is zeroed unless it is encrypted: a tenant could read data that
// another has left there.
func (e *Engine) copyPart(ctx context.Context, c *fullCopy, lv lvm.LogicalVolume) (whole bool, err error) {
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return false, err
	}
	end := c.size
	if c.spec.FSType == volume.Raw && !c.spec.Encrypted {
		if end, err = deviceSize(d.Path); err == nil {
			err = checkCommitted(lv, d.Path, end, lv.Size)
		}
		if err != nil {
			return false, err
		}
	}
	// Exclusive: the kernel refuses a device that is mounted.
	to, err := os.OpenFile(d.Path, os.O_WRONLY|unix.O_EXCL, 0)
	if err != nil {
		return false, fmt.Errorf("copy snapshot %s: %w", c.spec.CloneOf, err)
	}
	if err = e.copyBytes(ctx, c, to, min(c.at+partAt(e.wipeRate), end)); err == nil {
		err = to.Sync()
	}
	if err := errors.Join(err, to.Close()); err != nil {
		return false, fmt.Errorf("copy snapshot %s/%s to %s at byte %d: %w", c.spec.Group, c.spec.CloneOf, c.spec.Name, int64(c.at), err)
	}
	e.after("copy part")
	return c.at >= end, nil
}

func (e *Engine) copyBytes(ctx context.Context, c *fullCopy, to *os.File, end volume.Bytes) error {
	step := make([]byte, copyStep)
	for c.at < min(end, c.size) {
		start := time.Now()
		piece := step[:min(copyStep, end-c.at, c.size-c.at)]
		if _, err := c.from.ReadAt(piece, int64(c.at)); err != nil {
			return err
		}
		if _, err := to.WriteAt(piece, int64(c.at)); err != nil {
			return err
		}
		c.at += volume.Bytes(len(piece))
		if err := pace(ctx, start, volume.Bytes(len(piece)), e.wipeRate); err != nil {
			return err
		}
	}
	if c.at >= end {
		return nil
	}
	if _, err := wipePart(ctx, openDevice{to}, volume.WipeZero, c.at, end-c.at, e.wipeRate); err != nil {
		return err
	}
	c.at = end
	return nil
}

// finishFullCopy turns a complete full copy into a volume of its own. Killed before untagCopied, it is
// repeated by the next call; killed later, the copy is created again. A raw block volume has no file system
// whose UUID changes, so its next call always continues.
func (e *Engine) finishFullCopy(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, key luks.Key) (openedVolume, error) {
	if tags.Fill != volume.FillCopied {
		return openedVolume{}, notCopiedErr(spec)
	}
	if tags.LUKS != "" {
		d, err := e.activeDevice(ctx, lv)
		if err != nil {
			return openedVolume{}, err
		}
		if err := luks.CheckKey(ctx, e.host.Killable, d.Path, key); err != nil {
			return openedVolume{}, wrongKey(d, err)
		}
	}
	if tags.FSType == volume.Raw {
		return e.finishRaw(ctx, spec, lv, tags, key)
	}
	return e.makeIndependent(ctx, spec, lv, tags, key)
}

// untagCopied marks a full copy as incomplete, durably: the program that is about to change its UUID cannot
// resume after being killed. Everything that was done to the copy before can be repeated.
func (e *Engine) untagCopied(ctx context.Context, lv lvm.LogicalVolume, f *openedVolume) error {
	if f.tags.Fill == "" {
		return nil // a thin copy is created again in any case
	}
	if err := holdsClone(*f); err != nil {
		return err
	}
	if err := e.lvm.Retag(ctx, lv, []string{f.tags.Fill.Tag()}, nil); err != nil {
		return err
	}
	e.after("untag copied")
	f.tags.Fill = ""
	return nil
}

// holdsClone fails unless the file system of a copy still has the UUID of its source.
func holdsClone(f openedVolume) error {
	id, err := f.content.uuid(f.content.path)
	if err == nil && id == f.tags.Clone {
		return nil
	}
	return errors.Join(err, fmt.Errorf("it should hold the file system %s, and holds %q", f.tags.Clone, id))
}

// finishRaw zeroes the part of an encrypted raw block volume beyond the copied content, which needs the key
// and may take several calls, and then makes the copy a volume of its own.
func (e *Engine) finishRaw(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, key luks.Key) (openedVolume, error) {
	if tags.LUKS != "" {
		if tags.Zeroed == 0 { // zero would overwrite the copied content
			return openedVolume{}, fmt.Errorf("%w: volume %s/%s is a whole copy, and the tag that says how much of it was copied (%s) is missing; delete its claim, and copy again", ErrDamaged, lv.Group, lv.Name, volume.ZeroedTag(0))
		}
		d, err := e.activeDevice(ctx, lv)
		if err != nil {
			return openedVolume{}, err
		}
		on, err := e.openCopy(ctx, openedVolume{device: d, tags: tags, key: key})
		if err != nil {
			return openedVolume{}, err
		}
		if err := e.zero(ctx, d, on.path, tags); err != nil {
			return openedVolume{}, err
		}
	}
	return e.makeIndependent(ctx, spec, lv, tags, key)
}
