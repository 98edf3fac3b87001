package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/ondisk"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/xfs"
)

// MakeDirectoryPool creates a directory pool whose volumes may take size altogether, or grows an existing one
// to that size; it refuses a smaller size than the pool has. It is idempotent, killed at any instant. The
// pool is a logical volume of its group with an XFS file system, and its volumes are directories there.
// MakeDirectoryPool returns how much the pool's volumes may take afterwards.
func (e *Engine) MakeDirectoryPool(ctx context.Context, g volume.Group, n volume.Name, size volume.Bytes) (volume.Bytes, error) {
	if size = size.RoundUp(volume.Block); size < volume.MinDirectoryPool {
		return 0, &volume.FieldError{Field: "size", Value: fmt.Sprint(int64(size)), Reason: fmt.Sprintf("is less than %s, the least that a directory pool has", volume.MinDirectoryPool)}
	}
	release, err := e.lockPool(ctx, g, n)
	if err != nil {
		return 0, err
	}
	defer release()
	if err := e.nameForPool(g, n); err != nil {
		return 0, err
	}
	lv, err := e.lvm.Volume(ctx, g, n)
	if errors.Is(err, lvm.ErrNoVolume) {
		lv, err = e.newPool(ctx, g, n, size)
	}
	if err != nil {
		return 0, err
	}
	tags, err := poolTags(lv)
	if err != nil {
		return 0, err
	}
	if size < tags.Size && tags.State == volume.Ready {
		return tags.Size, refused("directory pool %s holds %d bytes, and XFS does not shrink; ask for as much or more", volume.DirectoryPoolOf(g, n), int64(tags.Size))
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return 0, err
	}
	if tags.State == volume.Creating {
		if err := e.finishPool(ctx, lv, d, tags); err != nil || size <= tags.Size {
			return tags.Size, err
		}
		tags.State = volume.Ready // an earlier call began it with another size
	}
	return size, e.growPool(ctx, lv, d, tags, size)
}

// nameForPool refuses a name for which this node has a volume's record: the record prevents an empty
// replacement of that volume.
func (e *Engine) nameForPool(g volume.Group, n volume.Name) error {
	rec, err := e.records.read(g, n)
	if errors.Is(err, os.ErrNotExist) || err == nil && rec.Kind == kindDirectories {
		return nil
	}
	if err != nil {
		return err
	}
	return refused("%s/%s is no directory pool: this node's record %s is of a volume; use another name", g, n, e.records.file(g, n))
}

// newPool creates the logical volume of a pool.
func (e *Engine) newPool(ctx context.Context, g volume.Group, n volume.Name, size volume.Bytes) (lvm.LogicalVolume, error) {
	tags := volume.DirectoryPool{State: volume.Creating, Size: size}
	var err error
	if tags.FS, err = ondisk.NewUUID(); err != nil {
		return lvm.LogicalVolume{}, err
	}
	lv := lvm.LogicalVolume{
		Group: g, Name: n, Tags: tags.Strings(),
		Size: volume.XFSDeviceSize(size, 0), Shape: volume.Shape{Layout: volume.Linear},
	}
	if err := e.lvm.Create(ctx, lv); err != nil {
		return lv, err
	}
	e.after("lvcreate")
	return e.lvm.Volume(ctx, g, n)
}

// poolContent returns a pool as a volume with a file system of its own, for the functions that format and
// grow volumes.
func (e *Engine) poolContent(d lvm.Device, t volume.DirectoryPool) openedVolume {
	tags := volume.Tags{State: t.State, FS: t.FS, Size: t.Size}
	return openedVolume{device: d, tags: tags, content: e.contentOf(d, tags)}
}

// finishPool formats a pool in state creating, unless that is done, and makes it ready. A pool gets its first
// volume only when it is ready, so in state creating it holds nothing.
func (e *Engine) finishPool(ctx context.Context, lv lvm.LogicalVolume, d lvm.Device, t volume.DirectoryPool) error {
	f := e.poolContent(d, t)
	rec, err := e.records.read(lv.Group, lv.Name)
	recorded := err == nil && rec.VolumeUUID == lv.UUID || err != nil && !errors.Is(err, os.ErrNotExist)
	valid, err := checkFilesystem(lv, f.tags, f.content, recorded)
	if err != nil {
		return err
	}
	if !valid || !recorded {
		spec := volume.Spec{Group: lv.Group, Name: lv.Name, Size: t.Size, Layout: volume.Linear}
		never, err := mayFormat(spec, lv, f, valid)
		if err != nil {
			return err
		}
		if never {
			if err := e.formatPool(ctx, d, t); err != nil {
				return err
			}
		}
	}
	if err := e.fillPool(ctx, lv, f, t.Size); err != nil {
		return err
	}
	if err := e.lvm.Retag(ctx, lv, []string{volume.Creating.Tag()}, []string{volume.Ready.Tag()}); err != nil {
		return err
	}
	e.after("tag ready")
	t.State = volume.Ready
	e.recordPool(lv, t)
	e.after("record pool")
	return nil
}

// fillPool makes sure that the file system of a pool holds size, and records that it does.
func (e *Engine) fillPool(ctx context.Context, lv lvm.LogicalVolume, f openedVolume, size volume.Bytes) (err error) {
	fs, err := mount.Attach(mount.XFS, f.content.path, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	if err := quota.CheckEnforced(f.content.path); err != nil {
		return err
	}
	if err := e.grow(ctx, fs.Root(), f, 0); err != nil {
		return err
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fs.Root().Fd()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	info := poolInfo{VolumeUUID: lv.UUID}
	if err := readJSON(root, poolFile, &info); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if info.Size >= size {
		return nil
	}
	if err := e.makePoolRoom(ctx, fs.Root(), f, size); err != nil {
		return err
	}
	if info.Size == 0 { // it is empty
		for _, dir := range []string{volumesDir, newDir, goneDir} {
			if err := root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	info.Size = size
	if err := writeJSON(root, poolFile, info); err != nil {
		return err
	}
	e.after("write pool")
	return nil
}

// makePoolRoom makes sure that volumes can take as much as the pool promises, even if XFS needs more for
// itself than computed. It does not compensate for what existing files use, of any owner.
func (e *Engine) makePoolRoom(ctx context.Context, root *os.File, f openedVolume, size volume.Bytes) error {
	all, err := quota.Projects(f.content.path)
	if err != nil {
		return err
	}
	for _, u := range all {
		size -= u.Used
	}
	return e.makeRoom(ctx, root, f, size)
}

// growPool grows a pool that is ready. It raises what the pool may promise last.
func (e *Engine) growPool(ctx context.Context, lv lvm.LogicalVolume, d lvm.Device, t volume.DirectoryPool, size volume.Bytes) error {
	f := e.poolContent(d, t)
	if _, err := checkFilesystem(lv, f.tags, f.content, true); err != nil {
		return err
	}
	if err := e.extend(ctx, lv, d, volume.XFSDeviceSize(size, 0)); err != nil {
		return err
	}
	if err := e.fillPool(ctx, lv, f, size); err != nil {
		return err
	}
	if err := e.tagSize(ctx, lv, t.Size, size); err != nil {
		return err
	}
	t.Size = size
	e.recordPool(lv, t)
	e.signalRoomFreed()
	return nil
}

// RemoveDirectoryPool removes a directory pool, and refuses one with volumes.
func (e *Engine) RemoveDirectoryPool(ctx context.Context, g volume.Group, n volume.Name) error {
	release, err := e.lockPool(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	lv, err := e.lvm.Volume(ctx, g, n)
	if errors.Is(err, lvm.ErrNoVolume) {
		return e.poolIsGone(ctx, g, n)
	}
	if err != nil {
		return err
	}
	tags, err := poolTags(lv)
	if err != nil {
		return err
	}
	if tags.State != volume.Ready {
		return refused("directory pool %s is %s, and then remove it", volume.DirectoryPoolOf(g, n), poolNotFinished(volume.DirectoryPoolOf(g, n)))
	}
	if err := e.checkEmpty(ctx, lv); err != nil {
		return err
	}
	if err := e.lvm.Remove(ctx, lv); err != nil {
		return err
	}
	e.after("lvremove")
	e.signalRoomFreed()
	return e.poolIsGone(ctx, g, n)
}

// poolIsGone completes the removal of a pool. It flushes LVM's metadata first; otherwise a power cut could
// bring back the pool, ready and empty, and volumes would be placed in it.
func (e *Engine) poolIsGone(ctx context.Context, g volume.Group, n volume.Name) error {
	if err := e.lvm.Flush(ctx, g, n); err != nil {
		return err
	}
	return e.forgetPool(g, n)
}

// forgetPool removes this node's record of a pool, and refuses the record of a volume.
func (e *Engine) forgetPool(g volume.Group, n volume.Name) error {
	rec, err := e.records.read(g, n)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if rec.Kind != kindDirectories {
		return refused("%s/%s is no directory pool: this node's record %s is of a volume", g, n, e.records.file(g, n))
	}
	return e.records.remove(g, n)
}

// checkEmpty refuses a pool that holds anything besides flexlvm's own directories: volumes, volumes that
// xfs_repair has moved to lost+found, or files of a person.
func (e *Engine) checkEmpty(ctx context.Context, lv lvm.LogicalVolume) (err error) {
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return err
	}
	p, err := attachPool(d, lv.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	names, err := p.volumes()
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return refused("directory pool %s has %s (%s); it is removed when they are gone", p.poolName(), volume.Pluralize(len(names), "volume", "volumes"), names[0])
	}
	if err := p.removeUnfinishedDirectories(ctx); err != nil {
		return err
	}
	others, err := p.foreignEntries()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return refused("directory pool %s holds %q, which is no volume: mount it, and look whether anybody needs that", p.poolName(), others[0])
	}
	all, err := quota.Projects(d.Path)
	if err != nil {
		return err
	}
	for id, u := range all {
		if id != 0 && u.Inodes > 0 {
			return refused("directory pool %s has no volume, and files of project %d: mount it, and find them with `xfs_quota -x -c 'report -p'`", p.poolName(), id)
		}
	}
	return nil
}

// formatPool creates the file system of a directory pool, all of which inodes may use. Only finishPool calls
// it, and only in state creating.
func (e *Engine) formatPool(ctx context.Context, d lvm.Device, t volume.DirectoryPool) error {
	if t.State != volume.Creating {
		return fmt.Errorf("refusing to format %s/%s: its state is %s", d.Group, d.Name, t.State)
	}
	err := xfs.Mkfs(ctx, e.host.Killable, xfs.Format{Device: d.Path, UUID: t.FS, Size: t.Size, AnyInodes: true})
	if err != nil {
		return err
	}
	if err := durable.Sync(d.Path); err != nil {
		return err
	}
	e.after("mkfs")
	return nil
}
