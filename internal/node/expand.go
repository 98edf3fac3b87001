package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Expand grows the volume to at least size bytes, mounted or not. A larger volume stays as it is, because
// volumes do not shrink: Kubernetes lets users ask for less after an expansion that did not finish here, and
// repeats the call with the smaller size until it succeeds. If the group is full, Expand waits for room
// (Config.RoomTimeout); if none is freed, the error wraps lvm.ErrNoSpace and nothing has changed.
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
		return e.explainGroup(ctx, spec, e.expandDirectory(ctx, spec.Group, spec.DirectoryPool, spec.Name, size, func(t volume.Tags, groupUUID string) error {
			return admit(spec, t, groupUUID)
		}))
	}
	release, err := e.lockVolume(ctx, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()
	if _, err := e.usableDevice(ctx, spec.Group, spec.Name); errors.Is(err, lvm.ErrSuspended) {
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

// checkZeroable refuses to grow a raw block volume that has copy-on-write snapshots. LVM refuses only to extend its
// device, which a call may already have done before the snapshots were taken. Zeroing the added part of the device
// would copy it into their stores, which may overflow, and the snapshots would be lost. It is pure.
func checkZeroable(lv lvm.LogicalVolume, tags volume.Tags, size volume.Bytes) error {
	if tags.FSType != volume.Raw || !lv.HasSnapshots || size <= tags.Size {
		return nil
	}
	return fmt.Errorf("grow volume %[1]s/%[2]s: it %[3]w, and zeroing the room that it gets would fill them; delete its VolumeSnapshots, and those that are not flexlvm's (`lvs -o +lv_tags -S 'origin=%[2]s' %[1]s`), and it is retried", lv.Group, lv.Name, lvm.ErrHasSnapshots)
}

// extendAndRecord extends the device and records the new size, after zeroing the added part of a raw block volume.
func (e *Engine) extendAndRecord(ctx context.Context, f *openedVolume, lv lvm.LogicalVolume, size volume.Bytes, spec volume.Spec) error {
	if err := checkZeroable(lv, f.tags, size); err != nil {
		return err
	}
	spec.Size = size
	if err := e.extend(ctx, lv, f.device, spec.DeviceSize()); err != nil {
		return err
	}
	if err := e.resizeContainer(ctx, f.device, f.content, f.key); err != nil {
		return err
	}
	old := f.tags.Size
	if f.tags.FSType == volume.Raw {
		// With snapshots, the size stays as it is (checkZeroable), and what the device has beyond it is not zeroed.
		if !lv.HasSnapshots {
			if err := e.zero(ctx, f.device, f.content.path, f.tags); err != nil {
				return err
			}
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

// ExpandMounted is Expand for callers that know only a volume's name and where it is mounted (ErrNotMounted), or
// where a raw block volume was (mountedOrPublished); the rest comes from the volume's tags. key is the key of an
// encrypted volume. ExpandMounted returns the volume's space afterwards.
func (e *Engine) ExpandMounted(ctx context.Context, g volume.Group, n volume.Name, path string, size volume.Bytes, key luks.Key) (Space, error) {
	if err := e.retryForRoom(ctx, g, func(ctx context.Context) error { return e.expandMounted(ctx, g, n, path, size, key) }); err != nil {
		return Space{}, err
	}
	d, err := mountedOrPublished(g, n, path)
	if err != nil {
		return Space{}, err
	}
	return spaceOf(d, path)
}

// expandMounted reads all its input under the volume's lock: a concurrent mount may be setting the inode
// limit that the growth has to keep.
func (e *Engine) expandMounted(ctx context.Context, g volume.Group, n volume.Name, path string, size volume.Bytes, key luks.Key) error {
	if pool, is, err := directoryMountedAt(g, n, path); is || err != nil && !errors.Is(err, ErrNotMounted) {
		if err != nil {
			return err
		}
		return e.expandDirectory(ctx, g, pool, n, size, func(volume.Tags, string) error { return nil })
	}
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	d, err := mountedOrPublished(g, n, path)
	if err != nil {
		return err
	}
	if err := e.awaitMapping(ctx, d); err != nil {
		return err
	}
	lv, err := e.lvm.Volume(ctx, g, n)
	if err != nil {
		return err
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return err
	}
	on, err := e.openedContent(ctx, d, tags)
	if err != nil {
		return err
	}
	inodes, err := inodeLimit(d, on, tags)
	if err != nil {
		return err
	}
	// The layout stays empty: LVM extends a volume whatever its layout.
	spec := volume.Spec{
		Group: g, GroupUUID: lv.GroupUUID, Name: n, Size: tags.Size, Inodes: inodes,
		Kind: tags.Kind, Cluster: tags.Cluster, Namespace: tags.Namespace, Encrypted: tags.LUKS != "", FSType: tags.FSType,
	}
	return e.expandLocked(ctx, spec, size, key)
}

// inodeLimit returns the inode limit of a mounted volume.
func inodeLimit(d lvm.Device, on content, tags volume.Tags) (int64, error) {
	if tags.FSType == volume.Raw {
		return 0, nil
	}
	usage, err := quota.Read(on.path)
	if err == nil && usage.Limit.Size == 0 {
		err = fmt.Errorf("grow volume %s/%s: %s has no quota, which every mount of it sets; its inode limit would be lost", d.Group, d.Name, d.Path)
	}
	return usage.Limit.Inodes, err
}
