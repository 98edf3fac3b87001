package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// mountDirectory is the part of mount that is specific to directory volumes. The caller holds the volume's
// lock, and the target is empty.
func (e *Engine) mountDirectory(ctx context.Context, spec volume.Spec, t *mount.Target, r MountRequest) error {
	return e.withPool(ctx, spec.Group, spec.DirectoryPool, func(p *directoryPool) error {
		lv, rec, tags, err := e.findDirectory(ctx, p, spec)
		if err != nil {
			return err
		}
		if r.Alone {
			mounted, err := mount.ByDevice()
			if err != nil {
				return err
			}
			if at := mountsOfDirectory(lv.Name, mounted[p.device.Number]); len(at) > 0 {
				return fmt.Errorf("mount volume %s/%s: %w: it is for one pod alone and is mounted at %s", lv.Group, lv.Name, ErrInUse, at[0])
			}
		}
		if err := p.ensureQuota(lv, rec, tags.Size); err != nil {
			return err
		}
		if tags, err = e.recordMountableDirectory(ctx, lv, tags); err != nil {
			return err
		}
		whole, err := mount.Attach(mount.XFS, p.device.Path, r.ReadOnly, r.Options...)
		if err != nil {
			return err
		}
		below, err := whole.Subdirectory(path.Join(volumePath(lv.Name), dataDir), t)
		if err != nil {
			return err
		}
		defer func() { _ = below.Close() }()
		e.after("attach")
		e.touch(lv.Group, lv.Name)
		if err := below.MoveTo(t); err != nil {
			return err
		}
		e.after("move mount")
		return nil
	})
}

// findDirectory returns the volume of a spec, and creates it if this node has never had it.
func (e *Engine) findDirectory(ctx context.Context, p *directoryPool, spec volume.Spec) (lv lvm.LogicalVolume, rec directoryRecord, tags volume.Tags, err error) {
	if err = checkGroup(spec, p.device.GroupUUID); err != nil {
		return lv, rec, tags, err
	}
	lv, rec, err = p.read(spec.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		e.expireTombstones(spec.Group, spec.Name)
		if err = e.checkDirectoryCreatable(spec, err); err != nil {
			return lv, rec, tags, err
		}
		if err = e.makeDirectory(ctx, p, spec); err != nil {
			return lv, rec, tags, err
		}
		lv, rec, err = p.read(spec.Name)
	}
	if err != nil {
		return lv, rec, tags, err
	}
	if tags, err = ownedTags(lv); err != nil {
		return lv, rec, tags, err
	}
	if tags.State == volume.Creating { // the call that renamed it may have been killed before the name was durable
		if err = syncDir(p.Root, volumesDir); err != nil {
			return lv, rec, tags, err
		}
	}
	return lv, rec, tags, admit(spec, tags, p.device.GroupUUID)
}

// checkDirectoryCreatable refuses to create a volume that was removed, or that this node has had before.
func (e *Engine) checkDirectoryCreatable(spec volume.Spec, none error) error {
	if since, ok := e.records.blockedByTombstone(spec.Group, spec.Name, e.now()); ok {
		return removedErr(spec, since)
	}
	known, err := e.records.hasRecordOf(spec.Group, spec.Name)
	switch {
	case known || err != nil:
		return errors.Join(lostErr(e.records.file(spec.Group, spec.Name), none), err)
	case spec.FS != "":
		return evictedErr(spec, none)
	}
	return nil
}

// makeDirectory creates a volume in state creating, with its quota, under newDir, and then renames it to its
// name. So the volume exists as a whole or not at all.
func (e *Engine) makeDirectory(ctx context.Context, p *directoryPool, spec volume.Spec) error {
	release, err := e.lockPool(ctx, spec.Group, spec.DirectoryPool)
	if err != nil {
		return err
	}
	defer release()
	if err := readJSON(p.Root, poolFile, &p.info); err != nil { // it may have changed since the pool was opened
		return err
	}
	switch why, err := p.repairAdvice(); {
	case err != nil:
		return err
	case why != "": // the volume may exist under another name
		return fmt.Errorf("volume %s is not made: %s", spec.Name, why)
	}
	if err := p.ensureRoom(ctx, spec.DeviceSize(), spec.Size); err != nil {
		return err
	}
	endRetryTurn(ctx)
	tags, err := newTags(spec)
	if err != nil {
		return err
	}
	rec := directoryRecord{Tags: tags.Strings(), Inodes: spec.Inodes, Created: e.now().UTC()}
	if rec.Project, err = p.nextProject(); err != nil {
		return err
	}
	e.after("write pool")
	if err := e.createVolumeDir(p, path.Join(newDir, string(spec.Name)), rec, spec.Size); err != nil {
		return fmt.Errorf("make volume %s in directory pool %s: %w", spec.Name, p.poolName(), err)
	}
	if err := p.Rename(path.Join(newDir, string(spec.Name)), volumePath(spec.Name)); err != nil {
		return fmt.Errorf("make volume %s in directory pool %s: %w", spec.Name, p.poolName(), err)
	}
	if err := errors.Join(syncDir(p.Root, volumesDir), syncDir(p.Root, newDir)); err != nil {
		return err
	}
	e.after("name directory")
	return nil
}

// createVolumeDir creates the directories of a volume, with its quota and its record, durably.
func (e *Engine) createVolumeDir(p *directoryPool, dir string, rec directoryRecord, size volume.Bytes) error {
	data := path.Join(dir, dataDir)
	for _, d := range []string{dir, data} {
		if err := p.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	e.after("make directory")
	root, err := p.Open(data)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	// The mode of the root of a new file system, whatever the umask.
	if err := errors.Join(root.Chmod(0o755), quota.EnsureProjectOf(root, rec.Project)); err != nil {
		return err
	}
	e.after("set project")
	if err := quota.SetOf(p.device.Path, rec.Project, limitOf(rec, size)); err != nil {
		return err
	}
	e.after("set quota")
	if err := errors.Join(root.Sync(), p.makeRecord(dir, rec)); err != nil { // this makes the quota durable as well: XFS has one log
		return err
	}
	e.after("write directory record")
	return syncDir(p.Root, dir)
}

// unfinishedProjects returns the projects of volumes that are being created, or were when a call was killed. It
// needs no lock: one that is renamed meanwhile is listed as a volume. A project that cannot be read is left
// out, so that its quota counts.
func (p *directoryPool) unfinishedProjects() map[quota.Project]bool {
	all := map[quota.Project]bool{}
	names, _ := p.listDir(newDir)
	for _, name := range names {
		if id, err := p.projectOf(path.Join(newDir, name)); err == nil {
			all[id] = true
		}
	}
	return all
}

// projectOf returns the project of the data of a volume, finished or not.
func (p *directoryPool) projectOf(dir string) (quota.Project, error) {
	data, err := p.Open(path.Join(dir, dataDir))
	if err != nil {
		return 0, err
	}
	id, err := quota.ProjectOf(data)
	_ = data.Close()
	return id, err
}

// removeUnfinishedDirectories removes the unfinished volumes that killed calls have left. The caller holds the pool's
// lock, so no volume is being created.
func (p *directoryPool) removeUnfinishedDirectories(ctx context.Context) error {
	names, err := p.listDir(newDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := p.removeUnfinishedDirectory(ctx, path.Join(newDir, name)); err != nil {
			return fmt.Errorf("remove what is left of a volume that was never made: %w", err)
		}
	}
	return nil
}

// removeUnfinishedDirectory removes an unfinished volume, which was never handed out, and its quota.
func (p *directoryPool) removeUnfinishedDirectory(ctx context.Context, dir string) error {
	data, err := p.Open(path.Join(dir, dataDir))
	if err == nil {
		id, err := quota.ProjectOf(data)
		if err == nil && id != 0 {
			err = quota.SetOf(p.device.Path, id, quota.Limit{})
		}
		if err == nil {
			// Otherwise XFS counts the directory for the project until it has freed it, some time after the
			// removal.
			err = quota.Disown(data)
		}
		if err := errors.Join(err, data.Close()); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return clearTree(ctx, p.Root, dir, func(string) {})
}

// recordMountableDirectory is recordMountable for a volume that is a directory, and makes it ready at once.
func (e *Engine) recordMountableDirectory(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags) (volume.Tags, error) {
	rec, err := e.records.read(lv.Group, lv.Name)
	if err != nil || rec.VolumeUUID != lv.UUID || rec.State != tags.State || rec.Size != tags.Size {
		if tags.State != volume.Creating {
			if err := e.flushTags(ctx, lv); err != nil { // the call that wrote the tags may have been killed before it synced them
				return tags, err
			}
		}
		if err := e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, tags)); err != nil {
			if tags.State == volume.Creating {
				return tags, fmt.Errorf("volume %s/%s is new and is not handed out before it is on record: %w; make room for it, or make the directory writable", lv.Group, lv.Name, err)
			}
			e.writeEmptyRecord(lv.Group, lv.Name, err)
		}
		e.after("write record")
	}
	if tags.State != volume.Creating {
		return tags, nil
	}
	if err := e.makeReady(ctx, lv, tags); err != nil {
		return tags, err
	}
	tags.State = volume.Ready
	return tags, nil
}
