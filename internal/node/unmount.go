package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
)

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
