package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// withQuota attaches the file system of a volume and sets its quota to what its tags promise. The caller
// closes the returned mount.
func (e *Engine) withQuota(ctx context.Context, f openedVolume, spec volume.Spec) (*mount.Attached, error) {
	fs, err := mount.Attach(f.content.info().mountType, f.content.path, false)
	if err != nil {
		return nil, err
	}
	e.after("attach")
	if err := errors.Join(e.boundRetries(f), f.content.mounted(f.content.path).check()); err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	if err := e.setQuota(ctx, fs.Root(), f, spec.Inodes); err != nil {
		return nil, errors.Join(fmt.Errorf("limit volume %s/%s: %w", f.device.Group, f.device.Name, err), fs.Close())
	}
	return fs, nil
}

// setQuota does nothing if the limits are right, as at every mount except the first and the one after an
// interrupted growth. A growth (f.growing) always does everything: the limit may be right and the file system
// still too small.
func (e *Engine) setQuota(ctx context.Context, root *os.File, f openedVolume, inodes int64) error {
	device := f.content.path
	if err := quota.CheckEnforced(device); err != nil {
		return err
	}
	if err := quota.EnsureProject(root); err != nil {
		return err
	}
	usage, err := quota.Read(device)
	if err != nil {
		return err
	}
	want := quota.Limit{
		// A limit is never lowered: what was once promised and set stays.
		Size:   max(f.tags.Size.RoundUp(volume.Block), usage.Limit.Size),
		Inodes: inodes,
	}
	if usage.Limit == want && !f.growing {
		return nil
	}
	e.after("set project")
	if err := e.grow(ctx, root, f, inodes); err != nil {
		return err
	}
	if f.tags.State == volume.Creating && f.tags.Clone == "" {
		if err := e.makeRoom(ctx, root, f, want.Size); err != nil {
			return err
		}
	}
	if err := quota.Set(device, want); err != nil {
		return err
	}
	e.after("set quota")
	return nil
}

// grow grows the file system to the size of its device. The copies of its superblock are durable before the
// quota is set, because the next mount does not grow a volume that has its quota. inodes is the inode limit,
// 0 for none; a copy may have a larger limit than its source.
func (e *Engine) grow(ctx context.Context, root *os.File, f openedVolume, inodes int64) error {
	fs := f.content.mounted(f.content.path)
	device, err := e.sizeToGrowTo(ctx, root, f, fs)
	if err != nil {
		return err
	}
	if err := fs.grow(root, device, volume.InodePercent(f.tags.Size, inodes)); err != nil {
		return err
	}
	if err := e.lvm.Flush(ctx, f.device.Group, f.device.Name); err != nil {
		return err
	}
	e.after("grow")
	return nil
}

// sizeToGrowTo returns the size of a file system's device. If the device is larger than the file system, LVM
// must have committed that size. Otherwise LVM is not queried, such as at a first mount.
func (e *Engine) sizeToGrowTo(ctx context.Context, root *os.File, f openedVolume, fs mountedFilesystem) (volume.Bytes, error) {
	device, err := deviceSize(f.content.path)
	if err != nil {
		return 0, err
	}
	now, err := fs.trimmable(root)
	if err != nil || device <= now.size {
		return device, err
	}
	return e.committedSize(ctx, f.device, f.content.path)
}

// makeRoom checks that size fits on a new, empty file system, and extends its device by what is missing.
// volume.XFSDeviceSize errs on the large side, so this normally changes nothing; it is the safeguard if
// XFSDeviceSize is wrong.
//
// It is for new file systems only. Later, the free space does not show what was promised: a tenant that moves
// files out of its quota would be given space of the group that no claim is charged for.
func (e *Engine) makeRoom(ctx context.Context, root *os.File, f openedVolume, size volume.Bytes) error {
	for range 3 {
		free, err := f.content.mounted(f.content.path).free(root)
		if err != nil {
			return err
		}
		if free >= size {
			return nil
		}
		short := size - free
		lv, err := e.lvm.Volume(ctx, f.device.Group, f.device.Name)
		if err != nil {
			return err
		}
		if err := e.extend(ctx, lv, f.device, (lv.Size + short + short/16).RoundUp(volume.DefaultExtent)); err != nil {
			return err
		}
		if err := e.resizeContainer(ctx, f.device, f.content, f.key); err != nil {
			return err
		}
		if err := e.grow(ctx, root, f, 0); err != nil {
			return err
		}
	}
	return fmt.Errorf("the file system does not hold %d bytes although its device was extended three times", int64(size))
}

func deviceSize(path string) (volume.Bytes, error) {
	d, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open device: %w", err)
	}
	defer func() { _ = d.Close() }()
	end, err := d.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("read size of %s: %w", path, err)
	}
	return volume.Bytes(end), nil
}
