package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
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
// volume.DeviceSize errs on the large side, so this normally changes nothing; it is the safeguard if
// DeviceSize is wrong.
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
		if err := e.lvm.Extend(ctx, lv, (lv.Size + short + short/16).RoundUp(volume.DefaultExtent)); err != nil {
			return err
		}
		e.after("lvextend")
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

// Expand grows the volume to at least size bytes, mounted or not. A larger volume stays as it is, because
// volumes do not shrink: Kubernetes lets users ask for less after an expansion that did not finish here, and
// repeats the call with the smaller size until it succeeds. If the group is full, Expand waits for room
// (Config.RoomPatience); if none is freed, the error wraps lvm.ErrNoSpace and nothing has changed.
//
// For a reader (spec.ReadOnly) it does nothing: the replica grows through the claim of its loader.
//
// Expand extends and flushes the device first, then writes the new size to the record and the tags, and then
// grows the file system and the quota. Killed in between, the next call or the next mount completes it.
func (e *Engine) Expand(ctx context.Context, spec volume.Spec, size volume.Bytes) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.ReadOnly {
		return nil
	}
	return e.retryForRoom(ctx, spec.Group, func(ctx context.Context) error { return e.expand(ctx, spec, size) })
}

func (e *Engine) expand(ctx context.Context, spec volume.Spec, size volume.Bytes) error {
	if spec.Layout == volume.Directory {
		return e.expandDirectory(ctx, spec.Group, spec.DirectoryPool, spec.Name, size, func(t volume.Tags, groupUUID string) error {
			return admit(spec, t, groupUUID)
		})
	}
	release, err := e.lockVolume(ctx, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()
	if _, err := e.usable(ctx, spec.Group, spec.Name); errors.Is(err, lvm.ErrSuspended) {
		return err
	}
	return e.expandLocked(ctx, spec, size, luks.Key{})
}

// expandLocked is expand for callers that hold the volume's lock and know that its device is not suspended.
func (e *Engine) expandLocked(ctx context.Context, spec volume.Spec, size volume.Bytes, key luks.Key) error {
	lv, tags, err := e.lookUpAdmitted(ctx, spec)
	if err != nil {
		return err
	}
	if tags, err = e.ensureSettled(ctx, lv, tags); err != nil {
		return err
	}
	if tags.State != volume.Ready {
		return refused("volume %s/%s is %s; it can grow once it has been mounted", spec.Group, spec.Name, tags.State)
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return err
	}
	f := openedVolume{device: d, tags: tags, key: key, growing: true}
	if f.content, err = e.openOrFormatContainer(ctx, spec, lv, f, true); err != nil {
		return err
	}
	if _, err := checkFilesystem(lv, tags, f.content, true); err != nil {
		return err
	}
	size = max(size, tags.Size)
	if err := checkGrowable(lv, tags, size); err != nil {
		return err
	}
	if err := e.extendAndRecord(ctx, &f, lv, size, spec); err != nil {
		return err
	}
	if size > tags.Size {
		e.wakeDaemon() // the daemon charges the PersistentVolume for it, even if the growth is no longer requested
	}
	if tags.FSType == volume.Raw {
		return e.growPublishedMapping(ctx, f)
	}
	fs, err := e.withQuota(ctx, f, spec)
	if err != nil {
		return err
	}
	return fs.Close()
}

// checkGrowable refuses to grow a volume of a fixed size: its device would be extended by DeviceSize's amount,
// which the pool was charged for, and its file system would keep so much for itself that the promised size
// does not fit. It is pure.
func checkGrowable(lv lvm.LogicalVolume, tags volume.Tags, size volume.Bytes) error {
	if !tags.Fixed || size <= tags.Size {
		return nil
	}
	where := string(lv.Group) + "/" + string(lv.Name)
	return refused("volume %s stays at %d bytes: it was adopted, and its file system reserves more space for its own metadata than a file system that flexlvm creates, so it would not hold the %d that are asked for. To enlarge it, disown it, extend its logical volume (`lvextend`) and adopt it again", where, int64(tags.Size), int64(size))
}

// extendAndRecord extends the device and records the new size, after zeroing the added part of a raw block volume.
func (e *Engine) extendAndRecord(ctx context.Context, f *openedVolume, lv lvm.LogicalVolume, size volume.Bytes, spec volume.Spec) error {
	spec.Size = size
	if err := e.lvm.Extend(ctx, lv, spec.DeviceSize()); err != nil {
		return err
	}
	e.after("lvextend")
	if err := e.resizeContainer(ctx, f.device, f.content, f.key); err != nil {
		return err
	}
	old := f.tags.Size
	if f.tags.FSType == volume.Raw {
		if err := e.zero(ctx, f.device, f.content.path, f.tags); err != nil {
			return err
		}
		f.tags.Size = size
		return e.recordRawSize(ctx, lv, old, f.tags)
	}
	f.tags.Size = size
	// A mount trusts the record, which lies on another disk, so the record must not have a size that the
	// group's disks may lose in a power cut.
	if err := e.lvm.Flush(ctx, lv.Group, lv.Name); err != nil {
		return err
	}
	// The record comes before the tag: with the old size on record, the next mount would limit the volume to
	// that size after a power cut that has undone the quota.
	if err := e.recordSize(lv, f.tags); err != nil {
		return err
	}
	return e.tagSize(ctx, lv, old, size)
}

// recordRawSize records the new size of a raw block volume before a pod sees it: first in the tags, and then in
// the record, which the next mount uses. So the recorded size is never smaller than what a pod has seen.
func (e *Engine) recordRawSize(ctx context.Context, lv lvm.LogicalVolume, old volume.Bytes, tags volume.Tags) error {
	if err := e.tagSize(ctx, lv, old, tags.Size); err != nil {
		return err
	}
	if old == tags.Size { // the tag may be from a killed call that did not flush it
		if err := e.lvm.Flush(ctx, lv.Group, lv.Name); err != nil {
			return err
		}
	}
	return e.recordSize(lv, tags)
}

// recordSize writes the new size to the record; the volume does not grow unless that succeeds.
func (e *Engine) recordSize(lv lvm.LogicalVolume, tags volume.Tags) error {
	if err := e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, tags)); err != nil {
		return fmt.Errorf("volume %s/%s does not grow before its new size is on record: %w; make room for it, or make the directory writable", lv.Group, lv.Name, err)
	}
	e.after("write record")
	return nil
}

func (e *Engine) tagSize(ctx context.Context, lv lvm.LogicalVolume, old, now volume.Bytes) error {
	if now == old {
		return nil
	}
	if err := e.lvm.Retag(ctx, lv, []string{volume.SizeTag(old)}, []string{volume.SizeTag(now)}); err != nil {
		return err
	}
	e.after("tag size")
	return nil
}
