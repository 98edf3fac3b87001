package node

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Mount mounts the volume on target, read-only for those who come through there
// if readOnly, and makes it first where it does not exist. Where this very
// volume is mounted there already it succeeds and changes nothing.
//
// The mount onto target is its last step and atomic: whenever it is killed
// before, target is as it was.
func (e *Engine) Mount(ctx context.Context, spec volume.Spec, target string, readOnly bool) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.Namespace == "" {
		return &volume.FieldError{Field: "namespace", Reason: "is required: a volume belongs to the namespace that first mounts it"}
	}
	t, err := mount.OpenTarget(target)
	if err != nil {
		return err
	}
	defer func() { _ = t.Close() }()
	release, err := e.lockVolume(ctx, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()

	if done, err := mountedAlready(spec, target); done || err != nil {
		return err
	}
	if err := t.Empty(); err != nil {
		return err
	}
	f, err := e.find(ctx, spec)
	if err != nil {
		return err
	}
	return e.put(ctx, f, spec, t, readOnly)
}

// mountedAlready tells whether the volume is on top at target; anything else
// there is an error.
func mountedAlready(spec volume.Spec, target string) (bool, error) {
	points, err := mount.At(target)
	if err != nil || len(points) == 0 {
		return false, err
	}
	top := points[len(points)-1]
	d, err := lvm.DeviceByNumber(top.Number)
	if err == nil && d.Group == spec.Group && d.Name == spec.Name {
		return true, nil
	}
	return false, &mount.TargetError{
		Path:   target,
		Reason: fmt.Sprintf("something else is mounted there (%s from %s); unmount it first", top.Type, top.Source),
	}
}

// put mounts what was found and moves it onto t.
func (e *Engine) put(ctx context.Context, f found, spec volume.Spec, t *mount.Target, readOnly bool) error {
	settled := e.settle(ctx, f)
	fs, err := e.fitted(ctx, f, spec)
	err = errors.Join(err, settled())
	if fs != nil {
		defer func() { _ = fs.Close() }()
	}
	if err != nil {
		return err
	}
	moved := fs
	if readOnly {
		if moved, err = mount.AttachXFS(f.device.Path, true); err != nil {
			return err
		}
		defer func() { _ = moved.Close() }()
	}
	if err := e.records.touch(spec.Group, spec.Name, e.now()); err != nil {
		return err
	}
	if err := moved.MoveTo(t); err != nil {
		return err
	}
	e.after("move mount")
	return nil
}

// settle begins to make a volume that was found formatted ready, in its tags and
// in this node's record, and returns what waits for the end of that. LVM's tags
// and the file system are different places, so the one is written while the
// other is mounted; both must be done before anybody can write. A volume that is
// ready and on record is left alone.
func (e *Engine) settle(ctx context.Context, f found) (wait func() error) {
	if f.recorded {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		// A panic here would end the process before it could answer its caller.
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("make volume %s/%s ready: panic: %v\n%s", f.device.Group, f.device.Name, p, debug.Stack())
			}
		}()
		done <- e.makeReady(ctx, f)
	}()
	return func() error { return <-done }
}

func (e *Engine) makeReady(ctx context.Context, f found) error {
	if f.tags.State == volume.Creating {
		lv := lvm.LogicalVolume{Group: f.device.Group, Name: f.device.Name, UUID: f.device.VolumeUUID}
		if err := e.lvm.Retag(ctx, lv, []string{volume.Creating.Tag()}, []string{volume.Ready.Tag()}); err != nil {
			return err
		}
		e.after("tag ready")
	}
	if err := e.records.write(f.device.Group, f.device.Name, newRecord(f.device.VolumeUUID, f.tags)); err != nil {
		return err
	}
	e.after("write record")
	return nil
}

// Unmount takes whatever of ours is mounted at target away. Nothing mounted, or
// no such directory, is success: kubelet calls for directories that were never
// mounted. A volume in use is an error that wraps mount.ErrBusy, and kubelet
// calls again.
func (e *Engine) Unmount(ctx context.Context, target string) error {
	for {
		points, err := mount.At(target)
		if err != nil || len(points) == 0 {
			return err
		}
		top := points[len(points)-1]
		d, err := lvm.DeviceByNumber(top.Number)
		if err != nil {
			return &mount.TargetError{
				Path:   target,
				Reason: fmt.Sprintf("what is mounted there is no volume of ours (%s from %s); unmount it yourself", top.Type, top.Source),
			}
		}
		if err := e.unmountOne(ctx, d, top.Path, len(points)); err != nil {
			return err
		}
	}
}

// unmountOne removes the topmost of a number of mounts at path.
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
	return e.records.touch(d.Group, d.Name, e.now())
}
