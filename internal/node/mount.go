package node

import (
	"context"
	"fmt"
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
// (Config.RoomTimeout).
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
		return e.explainGroup(ctx, spec, e.mountDirectory(ctx, spec, t, r))
	}
	if now := e.givenUpAt(spec); !now.IsZero() && !now.Equal(givenUp) {
		return refused("volume %s/%s was given up while this call waited, so this call does not create it; a new call will", spec.Group, spec.Name)
	}
	err = e.findAndMount(ctx, spec, t, r)
	if err != nil && (spec.Encrypted || spec.FSType == volume.Raw) {
		if d, findErr := lvm.FindDevice(spec.Group, spec.Name); findErr == nil {
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
	if err := e.recordMountable(ctx, f); err != nil {
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
