package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// CreateCloneAhead creates a volume that starts as a copy of another (Spec.CloneOf) before its first mount, so that
// it holds the source's content as of now. A finished volume is left alone. Without this call, the first
// mount creates the copy. An encrypted thin copy is always created by its first mount, which brings the key.
// A thick copy is created only by this call (createFullCopy); if it is encrypted, its first mount finishes it.
func (e *Engine) CreateCloneAhead(ctx context.Context, spec volume.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.CloneOf == "" || spec.Namespace == "" || spec.Kind == volume.Snapshot {
		return &volume.FieldError{Field: volume.OptionCloneOf, Value: string(spec.CloneOf), Reason: "and the namespace are required to make a copy, which is no snapshot"}
	}
	if spec.Layout != volume.Thin {
		return e.createFullCopy(ctx, spec)
	}
	if spec.Encrypted {
		return noKeyErr(spec.Group, spec.Name)
	}
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()
	_, err = e.findOrCreate(ctx, spec, luks.Key{})
	return err
}

// copyOf creates the volume of a spec as a copy of another: a thin snapshot of it, whose file system gets its
// own UUID, size and limits.
//
// The copy becomes ready last, in the write of LVM's metadata that removes the tag of a copy; until then no
// pod gets it. Killed before, copyOf leaves an unfinished copy, which the next call creates again: the
// program that sets the UUID cannot resume after being killed. The source has to exist until then.
func (e *Engine) copyOf(ctx context.Context, spec volume.Spec, key luks.Key) (openedVolume, error) {
	if spec.Layout != volume.Thin {
		return openedVolume{}, notCopiedErr(spec)
	}
	tags, err := e.snapshot(ctx, spec, key)
	if err != nil {
		return openedVolume{}, err
	}
	lv, err := e.lvm.Volume(ctx, spec.Group, spec.Name)
	if err != nil {
		return openedVolume{}, err
	}
	return e.makeIndependent(ctx, spec, lv, tags, key)
}

// makeIndependent turns a copy into a volume of its own, with its own UUIDs, size and limits.
func (e *Engine) makeIndependent(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, key luks.Key) (openedVolume, error) {
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return openedVolume{}, err
	}
	f := openedVolume{device: d, tags: tags, key: key, growing: true}
	if f.content, err = e.openCopy(ctx, f); err == nil {
		err = e.assignUUID(ctx, lv, &f)
	}
	if err != nil {
		return openedVolume{}, fmt.Errorf("make volume %s/%s of the copy of %s: %w", spec.Group, spec.Name, spec.CloneOf, err)
	}
	if err := e.extend(ctx, lv, d, spec.DeviceSize()); err != nil {
		return openedVolume{}, err
	}
	if err := e.resizeContainer(ctx, d, f.content, key); err != nil {
		return openedVolume{}, err
	}
	if err := e.limitCopy(ctx, f, spec); err != nil {
		return openedVolume{}, err
	}
	del := []string{volume.Creating.Tag(), volume.CloneTag(tags.Clone)}
	if f.tags.Fill != "" {
		del = append(del, f.tags.Fill.Tag())
	}
	if err := e.lvm.Retag(ctx, lv, del, []string{volume.Ready.Tag()}); err != nil {
		return openedVolume{}, err
	}
	e.after("tag ready")
	f.tags.State, f.tags.Clone, f.tags.Fill, f.growing = volume.Ready, "", "", false
	return f, nil
}

// limitCopy sets the limits of a copy's file system, durably.
func (e *Engine) limitCopy(ctx context.Context, f openedVolume, spec volume.Spec) error {
	if f.tags.FSType == volume.Raw {
		return nil // writing the tags flushes the data on its device as well
	}
	fs, err := e.withQuota(ctx, f, spec)
	if err != nil {
		return err
	}
	// The limits must be on the disk before the tags say that the copy is ready.
	return errors.Join(fs.Close(), awaitClosed(ctx, f.content.path))
}

// copyAgain creates again a copy that an earlier call has left unfinished. While its source cannot be copied,
// the unfinished copy stays, for a person to look at.
func (e *Engine) copyAgain(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, tags volume.Tags, key luks.Key) (openedVolume, error) {
	if err := e.checkUnrecorded(lv); err != nil {
		return openedVolume{}, err
	}
	if spec.Layout != volume.Thin {
		return e.finishFullCopy(ctx, spec, lv, tags, key)
	}
	if err := e.removeUnfinishedCopy(ctx, spec, lv, key); err != nil {
		return openedVolume{}, err
	}
	return e.copyOf(ctx, spec, key)
}

// checkUnrecorded returns an error if a pod may have used an unfinished copy: this node has a record of it, which
// may be unreadable.
func (e *Engine) checkUnrecorded(lv lvm.LogicalVolume) error {
	recorded, err := e.isRecorded(lv)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s/%s is a copy that was never finished, and whether a pod has had it is unknown, so it is not created again: %w; inspect the copy and that file by hand", lv.Group, lv.Name, err)
	case recorded:
		return fmt.Errorf("%w: volume %s/%s is a copy that was never finished, and this node's record %s says that a pod had it; inspect it by hand", ErrDamaged, lv.Group, lv.Name, e.records.file(lv.Group, lv.Name))
	}
	return nil
}

// removeUnfinishedCopy removes the unfinished copy of an earlier call if the source can be copied again.
func (e *Engine) removeUnfinishedCopy(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, key luks.Key) error {
	if err := e.withSourceLock(ctx, spec.Group, spec.CloneOf, func() error {
		_, _, _, err := e.source(ctx, spec, key)
		return err
	}); err != nil {
		return err
	}
	return e.removeIncomplete(ctx, spec, lv)
}

func (e *Engine) removeIncomplete(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume) error {
	if d, err := lvm.FindDevice(lv.Group, lv.Name); err == nil && spec.Encrypted {
		if err := e.closeUnused(ctx, d); err != nil { // an open container would prevent the removal
			return err
		}
	}
	if err := e.lvm.Remove(ctx, lv); err != nil {
		return err
	}
	e.after("remove half")
	return e.removeNotes(lv.UUID)
}

// sourceLockTimeout is how long a copy or a snapshot waits for another call's lock on its source, such as an
// unmount that writes back slowly. It also bounds the wait for a volume's own lock where a volume is created
// before its first mount. The node daemon works serially: without a bound, one hung disk would silently delay
// all others.
const sourceLockTimeout = 30 * time.Second

// withSourceLock calls do with the lock on the source of a copy or a snapshot. The caller holds the copy's own lock.
func (e *Engine) withSourceLock(ctx context.Context, g volume.Group, n volume.Name, do func() error) error {
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, g, n)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// snapshot creates the copy under the lock of its source, and returns the copy's tags.
func (e *Engine) snapshot(ctx context.Context, spec volume.Spec, key luks.Key) (tags volume.Tags, err error) {
	err = e.withSourceLock(ctx, spec.Group, spec.CloneOf, func() error {
		origin, sourceTags, c, err := e.source(ctx, spec, key)
		if err != nil {
			return err
		}
		if err := writeBack(origin, c); err != nil {
			return err
		}
		tags, err = e.takeCopy(ctx, spec, origin, sourceTags)
		return err
	})
	if err == nil {
		e.after("snapshot")
	}
	return tags, err
}

// takeCopy has LVM create the copy of origin, which has the tags sourceTags. The caller holds the source's lock.
func (e *Engine) takeCopy(ctx context.Context, spec volume.Spec, origin lvm.LogicalVolume, sourceTags volume.Tags) (volume.Tags, error) {
	tags, err := copyTags(spec, sourceTags)
	if err != nil {
		return tags, err
	}
	made := lvm.LogicalVolume{Group: spec.Group, Name: spec.Name, Tags: tags.Strings(), Shape: spec.Shape()}
	if !spec.CopyOnWrite() {
		return tags, e.lvm.CreateThinSnapshot(ctx, origin, made)
	}
	var chunk volume.Bytes
	made.Size, chunk = volume.COWStore(origin.Size, origin.Extent, spec.Reserve)
	return tags, e.lvm.CreateCopyOnWriteSnapshot(ctx, origin, made, chunk)
}

// copyTags returns the tags of a copy that is about to be created. A snapshot keeps the UUIDs and the size of
// its source; any other copy becomes a volume of its own.
func copyTags(spec volume.Spec, sourceTags volume.Tags) (volume.Tags, error) {
	t, err := newTags(spec)
	if spec.Kind == volume.Snapshot {
		t.FS, t.LUKS, t.Size, t.Fixed = sourceTags.FS, sourceTags.LUKS, sourceTags.Size, sourceTags.Fixed
		return t, err
	}
	t.Clone = sourceTags.FS
	return t, err
}

// source looks up the source of a copy. The caller holds its lock. The content has no path if the source is
// encrypted and not open.
func (e *Engine) source(ctx context.Context, spec volume.Spec, key luks.Key) (lvm.LogicalVolume, volume.Tags, content, error) {
	fail := func(err error) (lvm.LogicalVolume, volume.Tags, content, error) {
		return lvm.LogicalVolume{}, volume.Tags{}, content{}, err
	}
	lv, err := e.lvm.Volume(ctx, spec.Group, spec.CloneOf)
	if err != nil {
		return fail(nothingToCopy(spec, err))
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return fail(err)
	}
	if tags, err = e.ensureSettled(ctx, lv, tags); err != nil {
		return fail(err)
	}
	if err := e.noteInvalid(lv); err != nil {
		return fail(err)
	}
	if err := e.checkCopyableNow(spec, lv, tags); err != nil {
		return fail(err)
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return fail(err)
	}
	c, err := e.checkSource(ctx, spec, lv, tags, d, key)
	if err != nil {
		return fail(err)
	}
	if err := e.checkRoom(ctx, spec, lv); err != nil {
		return fail(err)
	}
	return lv, tags, c, nil
}

// nothingToCopy explains why the source of a copy or a snapshot cannot be looked up.
func nothingToCopy(spec volume.Spec, err error) error {
	if !errors.Is(err, lvm.ErrNoVolume) {
		return err
	}
	gone := "if it was a snapshot, or a pod has used that claim, it is gone: delete the claim of the copy"
	if spec.Kind == volume.Snapshot {
		gone = "if one has, the volume is gone: delete the VolumeSnapshot, or the VolumeGroupSnapshot that it is of"
	}
	return fmt.Errorf("%s %q: the source volume does not exist, and no empty volume is created instead: %w; if it is the volume of a claim that no pod has used yet, start one; %s", volume.OptionCloneOf, spec.CloneOf, err, gone)
}

// checkCopyable decides whether the volume of a spec may be created as a copy of a volume with these tags: a volume
// of the same cluster and namespace that still holds data. It is pure.
func checkCopyable(spec volume.Spec, lv lvm.LogicalVolume, t volume.Tags) error {
	what := fmt.Sprintf("%s %q: that volume", volume.OptionCloneOf, spec.CloneOf)
	switch {
	case t.Cluster != spec.Cluster:
		return refused("%s was created for cluster %q, not for %q", what, t.Cluster, spec.Cluster)
	case t.Namespace != spec.Namespace:
		return refused("%s belongs to namespace %q, not to %q", what, t.Namespace, spec.Namespace)
	case (t.LUKS != "") != spec.Encrypted:
		return refused("%s and its copy must both be encrypted, or neither: a copy is encrypted with the key of what it is copied from; use a class like that of the other", what)
	case t.FSType != spec.FSType:
		return otherContent(what, t.FSType, spec.FSType)
	case t.Kind != volume.Claim && (t.Kind != volume.Snapshot || spec.Kind == volume.Snapshot):
		return refused("%s is of kind %q, and no %s is taken of it", what, t.Kind, copyNoun(spec))
	case t.State == volume.Doomed || lv.Name.IsDoomed():
		return refused("%s is being removed", what)
	case t.State == volume.Creating || t.Clone != "" || t.PartlyZeroed():
		return refused("%s is not created yet, so there is nothing to copy; it is retried", what)
	case t.Size > spec.Size && spec.Kind != volume.Snapshot:
		return refused("%s holds %d bytes by now and the copy %d; delete the claim of the copy and ask for more", what, int64(t.Size), int64(spec.Size))
	}
	return checkCopyLayout(spec, lv, t)
}

// otherContent returns the error for a copy whose file system or volume mode would differ from its source's.
func otherContent(what string, is, asked volume.FSType) error {
	if is.VolumeMode() != asked.VolumeMode() {
		return refused("%s has volumeMode %s, and its copy cannot have %s; let both be the same", what, is.VolumeMode(), asked.VolumeMode())
	}
	return refused("%s was created with %s, and a copy of it cannot be %s; use a class like that of the other", what, is, asked)
}

func copyNoun(spec volume.Spec) string {
	if spec.Kind == volume.Snapshot {
		return "snapshot"
	}
	return "copy"
}

// writeBack writes back the unsynced data of a volume that is in use, so that its users wait only a moment while
// LVM freezes it.
func writeBack(lv lvm.LogicalVolume, c content) error {
	if !lv.Open || c.path == "" {
		return nil
	}
	if _, raw := c.filesystem.(blockKind); raw {
		return durable.Sync(c.path)
	}
	fs, err := mount.Attach(c.info().mountType, c.path, false)
	if err != nil {
		return err
	}
	if err := syncAll(fs); err != nil {
		return errors.Join(fmt.Errorf("write back %s: %w", c.path, err), fs.Close())
	}
	return fs.Close()
}

func syncAll(fs *mount.Attached) error { return unix.Syncfs(int(fs.Root().Fd())) }

// assignUUID gives a copy's file system the UUID of its tags. A detached mount first replays the log;
// AttachCopy makes the kernel accept a second file system with the same UUID.
func (e *Engine) assignUUID(ctx context.Context, lv lvm.LogicalVolume, f *openedVolume) error {
	if f.tags.FSType == volume.Raw {
		return nil // only its tags identify it
	}
	fs, err := mount.AttachCopy(f.content.info().mountType, f.content.path)
	if err != nil {
		return err
	}
	if err := errors.Join(e.boundRetries(*f), fs.Close()); err != nil {
		return err
	}
	if err := awaitClosed(ctx, f.content.path); err != nil {
		return err
	}
	e.after("replay log")
	if err := e.untagCopied(ctx, lv, f); err != nil {
		return err
	}
	if err := f.content.setUUID(ctx, f.content.path, f.tags.FS); err != nil {
		return err
	}
	id, err := f.content.uuid(f.content.path)
	if err != nil {
		return err
	}
	if id != f.tags.FS {
		return fmt.Errorf("its file system should carry the UUID %s by now and has %s; it is taken again", f.tags.FS, id)
	}
	e.after("set UUID")
	return nil
}

const (
	// closedPoll is the interval at which awaitClosed checks the device.
	closedPoll = 5 * time.Millisecond
	// closedWait is how long awaitClosed waits.
	closedWait = 30 * time.Second
)

// awaitClosed waits until the device is no longer mounted: a process that is being forked may hold a mount
// for a moment longer than this process does.
func awaitClosed(ctx context.Context, device string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, closedWait, fmt.Errorf("it is still mounted after %s; unmount it", closedWait))
	defer cancel()
	for {
		f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
		if err == nil {
			return f.Close()
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("open device: %w", err)
		}
		if pause.For(ctx, closedPoll) != nil {
			return fmt.Errorf("wait until %s is closed: %w", device, context.Cause(ctx))
		}
	}
}
