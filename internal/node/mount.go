package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A MountRequest describes where and how to mount a volume.
type MountRequest struct {
	Target   string // the directory; for a raw block volume the file
	ReadOnly bool   // this one mount is read-only
	// Options of this mount. A mount for a reader (spec.ReadOnly) has none.
	Options []volume.MountOption
	// Alone refuses the mount, with ErrInUse, while the volume is mounted anywhere else on this node.
	Alone bool
	// Key is the key of an encrypted volume; a wrong key fails (luks.ErrWrongKey) and changes nothing.
	Key luks.Key
}

// Mount mounts the volume on its target, and creates it first if it does not exist. If this very volume is already
// mounted there, Mount succeeds and changes nothing. If there is no room for a new volume, Mount waits for room
// (Config.RoomPatience).
//
// With spec.ReadOnly, Mount never creates a volume: if the node has no such replica, the error is
// ErrNoReplica.
//
// The mount onto the target is the last step and atomic: killed before, Mount leaves the target as it was.
func (e *Engine) Mount(ctx context.Context, spec volume.Spec, r MountRequest) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.Namespace == "" {
		return &volume.FieldError{Field: "namespace", Reason: "is required: a volume belongs to the namespace that first mounts it"}
	}
	if spec.Kind == volume.Snapshot {
		return neverMountedErr(spec)
	}
	if spec.Encrypted && r.Key.IsZero() {
		return noKeyErr(spec.Group, spec.Name)
	}
	if err := checkBlockMount(spec, r); err != nil {
		return err
	}
	givenUp := e.givenUpAt(spec)
	return e.retryForRoom(ctx, spec.Group, func(ctx context.Context) error { return e.mount(ctx, spec, r, givenUp) })
}

// mount makes one attempt. givenUp is the time, read when the call began, at which the replica had
// last been given up. If it has been given up again since then, the call is stale and is refused.
func (e *Engine) mount(ctx context.Context, spec volume.Spec, r MountRequest, givenUp time.Time) error {
	open := mount.OpenTarget
	if spec.FSType == volume.Raw {
		open = mount.OpenFileTarget
	}
	t, err := open(r.Target)
	if err != nil {
		return err
	}
	defer func() { _ = t.Close() }()
	release, err := e.lockVolume(ctx, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()

	if done, err := mountedAlready(spec, r.Target); done || err != nil {
		return err
	}
	if err := t.Empty(); err != nil {
		return err
	}
	if spec.ReadOnly {
		return e.mountReader(ctx, spec, t)
	}
	if spec.Layout == volume.Directory {
		return e.mountDirectory(ctx, spec, t, r)
	}
	if now := e.givenUpAt(spec); !now.IsZero() && !now.Equal(givenUp) {
		return refused("volume %s/%s was given up while this call waited, and is not made for it; one that comes now gets it", spec.Group, spec.Name)
	}
	err = e.findAndMount(ctx, spec, t, r)
	if err != nil && (spec.Encrypted || spec.FSType == volume.Raw) {
		if d, gone := lvm.FindDevice(spec.Group, spec.Name); gone == nil {
			e.closeAfter(ctx, d)
		}
	}
	return err
}

func (e *Engine) findAndMount(ctx context.Context, spec volume.Spec, t *mount.Target, r MountRequest) error {
	f, err := e.findOrCreate(ctx, spec, r.Key)
	if err != nil {
		return err
	}
	if r.Alone {
		if err := notMounted(f); err != nil {
			return err
		}
	}
	if f.tags.FSType == volume.Raw {
		return e.mountBlockDevice(ctx, f, t)
	}
	return e.mountFilesystem(ctx, f, spec, t, r)
}

// notMounted fails if a volume is already mounted in this mount namespace.
func notMounted(f openedVolume) error {
	mounted, err := mount.ByDevice()
	if err != nil {
		return err
	}
	points, err := mountsOn(f.device, mounted)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("mount volume %s/%s: %w: it is for one pod alone and is mounted at %s", f.device.Group, f.device.Name, ErrInUse, points[0].Path)
	}
	return nil
}

// mountedAlready reports whether the volume is the topmost mount at target. Another topmost mount is an
// error.
func mountedAlready(spec volume.Spec, target string) (bool, error) {
	points, err := mount.At(target)
	if err != nil || len(points) == 0 {
		return false, err
	}
	top := points[len(points)-1]
	d, err := deviceOfMount(top)
	if err == nil && d.Group == spec.Group && d.Name == spec.Name {
		return true, nil
	}
	return false, &mount.TargetError{
		Path:   target,
		Reason: fmt.Sprintf("something else is mounted there (%s from %s); unmount it first", top.Type, top.Source),
	}
}

// mountFilesystem mounts a volume that was found, and moves the mount onto t.
func (e *Engine) mountFilesystem(ctx context.Context, f openedVolume, spec volume.Spec, t *mount.Target, r MountRequest) error {
	fs, err := e.withQuota(ctx, f, spec)
	if err != nil {
		return err
	}
	defer func() { _ = fs.Close() }()
	e.beforeLoader(f, spec, fs)
	moved := fs
	if r.ReadOnly || len(r.Options) > 0 {
		if moved, err = mount.Attach(f.content.info().mountType, f.content.path, r.ReadOnly, r.Options...); err != nil {
			return err
		}
		defer func() { _ = moved.Close() }()
	}
	return e.moveToTarget(ctx, f, moved, t)
}

// moveToTarget moves the mount of a volume onto t. Before anything can write to the volume, this node has recorded
// it durably, and it is never formatted from then on. Its tags become ready before it is handed out, or right
// afterwards (Config.Settle).
func (e *Engine) moveToTarget(ctx context.Context, f openedVolume, fs *mount.Attached, t *mount.Target) error {
	if err := e.publish(ctx, f); err != nil {
		return err
	}
	g, n := f.device.Group, f.device.Name
	e.touch(g, n)
	if err := fs.MoveTo(t); err != nil {
		return err
	}
	e.after("move mount")
	if f.tags.State == volume.Creating && e.settle != nil {
		e.settle(g, n)
	}
	return nil
}

// publish records that this node hands the volume out, and makes it ready unless that is done after
// the reply (Config.Settle).
//
// A volume in state creating is handed out only once the record is written, because the record alone
// keeps it from being formatted again. A ready volume is handed out even if the directory of the
// records is full or read-only, unless that would make its next mount smaller (recordedSmaller).
//
// An encrypted volume is always made ready first: if its record and its header were lost, nothing on
// its device would show that a pod has had it, as mayFormat finds for other volumes. A raw block
// volume is, too, because nothing on its device ever shows that.
func (e *Engine) publish(ctx context.Context, f openedVolume) error {
	g, n := f.device.Group, f.device.Name
	if !f.recorded {
		if f.tags.State == volume.Ready {
			// Its tags may be from a killed call that did not flush them, and the record lies on another
			// disk.
			if err := e.lvm.Flush(ctx, g, n); err != nil {
				return err
			}
		}
		err := e.records.write(g, n, newRecord(f.device.VolumeUUID, f.tags))
		switch {
		case err == nil:
			e.after("write record")
		case f.tags.State == volume.Creating:
			return fmt.Errorf("volume %s/%s is new and is not handed out before it is on record: %w; make room for it, or make the directory writable", g, n, err)
		case e.recordedSmaller(f):
			return fmt.Errorf("volume %s/%s is not handed out before its size is on record, or its next mount would be smaller: %w; make room for it, or make the directory writable", g, n, err)
		default:
			e.markUnrecorded(g, n, err)
		}
	}
	if f.tags.State == volume.Creating && (e.settle == nil || f.tags.LUKS != "" || f.tags.FSType == volume.Raw) {
		return e.makeReady(ctx, lvm.LogicalVolume{Group: g, Name: n, UUID: f.device.VolumeUUID}, f.tags)
	}
	return nil
}

// touch sets a volume's last use. If that fails, the volume looks idle for longer than it was, which is no
// reason to refuse the mount.
func (e *Engine) touch(g volume.Group, n volume.Name) {
	if err := e.records.touch(g, n, e.now()); err != nil {
		e.unrecorded(g, n, err)
	}
}

// markUnrecorded writes an empty record in place of one that could not be written and is not needed for
// safety, and logs the error. An empty record still shows that the volume existed, and fits on most full
// disks.
func (e *Engine) markUnrecorded(g volume.Group, n volume.Name, err error) {
	e.unrecorded(g, n, errors.Join(err, e.records.writeEmpty(g, n)))
}

// unrecorded logs a failed write of a volume's record that is not needed for safety.
func (e *Engine) unrecorded(g volume.Group, n volume.Name, err error) {
	e.log.WithError(err).WithField("volume", string(g)+"/"+string(n)).
		Warn("this node's record of the volume could not be written; make room in its directory, or make that writable")
}

// makeReady moves a recorded volume from state creating to ready, first in its tags and then in its record.
func (e *Engine) makeReady(ctx context.Context, lv lvm.LogicalVolume, t volume.Tags) error {
	if !volume.MayMove(t.State, volume.Ready, volume.ByEngine) {
		return refused("volume %s/%s is %s and cannot become ready", lv.Group, lv.Name, t.State)
	}
	if err := e.retag(ctx, lv, []string{volume.Creating.Tag()}, []string{volume.Ready.Tag()}); err != nil {
		return err
	}
	e.after("tag ready")
	t.State = volume.Ready
	if err := e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, t)); err != nil {
		e.unrecorded(lv.Group, lv.Name, err) // for a mount, a record in state creating is as good as a ready one
		return nil
	}
	e.after("record ready")
	return nil
}

// Settle sets the state in a volume's tags to ready if this node has handed the volume out. It may be called
// at any time, for any volume; if there is nothing to settle, it does nothing.
func (e *Engine) Settle(ctx context.Context, g volume.Group, n volume.Name) error {
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	rec, err := e.records.read(g, n)
	if err != nil || rec.State != volume.Creating {
		return nil // never handed out, settled already, or released meanwhile
	}
	lv, err := e.lvm.Volume(ctx, g, n)
	if err != nil {
		return err
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return err
	}
	if tags.State == volume.Ready && rec.VolumeUUID == lv.UUID { // the call that tagged it was killed before it wrote the record
		if err := e.lvm.Flush(ctx, g, n); err != nil {
			return err
		}
		return e.records.write(g, n, newRecord(lv.UUID, tags))
	}
	_, err = e.ensureSettled(ctx, lv, tags)
	return err
}

// ensureSettled makes a volume that was handed out ready in its tags, and returns them: a recorded volume in
// state creating is ready in all but its tags.
func (e *Engine) ensureSettled(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags) (volume.Tags, error) {
	if tags.State != volume.Creating {
		return tags, nil
	}
	published, err := e.wasPublished(lv)
	if err != nil {
		return tags, fmt.Errorf("%w; its next mount writes it anew", err)
	}
	if !published || e.givenUpUnzeroed(lv, tags) {
		return tags, nil
	}
	if err := e.makeReady(ctx, lv, tags); err != nil {
		return tags, err
	}
	tags.State = volume.Ready
	return tags, nil
}

// givenUpUnzeroed reports whether the record of a raw block volume in state creating is not from a mount,
// which writes it once the volume is zeroed, but from a release that may have been killed before it changed
// the tags. Such a volume may expose data that others have left on the disk.
//
// It is false for all other volumes: a pod may have written to one whose tags still say creating
// (Config.Settle), and a release of that leaves the same record and tags if it is killed there.
func (e *Engine) givenUpUnzeroed(lv lvm.LogicalVolume, tags volume.Tags) bool {
	if tags.FSType != volume.Raw {
		return false
	}
	rec, err := e.records.read(lv.Group, lv.Name)
	return err != nil || rec.State != volume.Creating && rec.State != volume.Ready
}

// wasPublished reports whether this node has ever handed out this very volume, so that it may hold data. A
// record that cannot be read counts as one of this volume: the result is then true, with the error.
func (e *Engine) wasPublished(lv lvm.LogicalVolume) (bool, error) {
	rec, err := e.records.read(lv.Group, lv.Name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return true, err
	}
	return rec.VolumeUUID == lv.UUID, nil
}

// Unmount unmounts the flexlvm volume that is mounted at target. It succeeds if nothing is mounted there or
// the directory does not exist, because kubelet also calls for directories that were never mounted. If the
// volume is in use, the error wraps mount.ErrBusy, and kubelet retries.
func (e *Engine) Unmount(ctx context.Context, target string) error {
	for {
		points, err := mount.At(target)
		if err != nil || len(points) == 0 {
			return err
		}
		top := points[len(points)-1]
		d, err := deviceOfMount(top)
		if err != nil {
			return &mount.TargetError{
				Path:   target,
				Reason: fmt.Sprintf("what is mounted there is no flexlvm volume (%s from %s); unmount it yourself", top.Type, top.Source),
			}
		}
		if err := e.unmountOne(ctx, d, top.Path, len(points)); err != nil {
			return err
		}
	}
}

// unmountOne removes the topmost mount at path, on which stacked mounts were seen.
func (e *Engine) unmountOne(ctx context.Context, d lvm.Device, path string, stacked int) error {
	release, err := e.lockVolume(ctx, d.Group, d.Name)
	if err != nil {
		return err
	}
	defer release()
	points, err := mount.At(path)
	if err != nil || len(points) < stacked {
		return err // another call was faster
	}
	if err := e.awaitMapping(ctx, d); err != nil { // the last unmount writes to the device
		return err
	}
	if err := mount.Unmount(path); err != nil {
		return err
	}
	e.after("unmount")
	if points, err = mount.At(path); err != nil {
		return err
	}
	if len(points) >= stacked {
		return fmt.Errorf("unmount %s: the kernel reported success and it is still mounted", path)
	}
	e.touch(d.Group, d.Name)
	e.closeAfter(ctx, d)
	return nil
}
