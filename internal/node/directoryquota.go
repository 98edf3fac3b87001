package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// promised returns how much the volumes of a pool may take altogether, including those that are being
// removed. It counts every project by its quota, and relies on every volume having one (see ensureQuotas).
func promised(all map[quota.Project]quota.Usage) volume.Bytes {
	return (&listing{before: all, after: all}).taken()
}

// takesOf returns how much of a pool is reserved for this project.
func takesOf(u quota.Usage) volume.Bytes {
	return volume.DirectorySize(max(u.Limit.Size, u.Used), max(u.Limit.Inodes, u.Inodes))
}

// ensureRoom fails unless the pool can promise more bytes than now, by more, and has data bytes free beyond what
// its volumes may still write: if a tenant has moved files out of its quota, the others have less space than
// their quotas promise. It first removes the unfinished volumes of killed calls. The caller holds the pool's
// lock.
func (p *directoryPool) ensureRoom(ctx context.Context, more, data volume.Bytes) error {
	leftoverErr := p.removeUnfinishedDirectories(ctx) // a volume that cannot be removed still takes room
	if err := p.checkRoomNow(more, data); err != nil {
		return errors.Join(err, leftoverErr)
	}
	return nil
}

// checkRoomNow is ensureRoom without the removal of unfinished volumes.
func (p *directoryPool) checkRoomNow(more, data volume.Bytes) error {
	all, err := p.ensureQuotas()
	if err != nil {
		return err
	}
	if free := p.info.Size - promised(all); free < more {
		return fmt.Errorf("%w: directory pool %s can still promise %d bytes (%s) of %d and %d are needed (%s); delete claims that nobody needs (never directories by hand), or enlarge it with `%s`",
			lvm.ErrNoSpace, p.poolName(), int64(max(0, free)), max(0, free), int64(p.info.Size), int64(more), more, p.poolName().CreateCommand())
	}
	short, err := p.shortfall(all)
	if err != nil {
		return err
	}
	if short += data; short > 0 {
		return fmt.Errorf("%w: %s", lvm.ErrNoSpace, p.shortfallMessage(short, all))
	}
	return nil
}

// shortfall returns how much less the pool has free than its volumes may still write; it is negative if the pool
// has more.
func (p *directoryPool) shortfall(all map[quota.Project]quota.Usage) (volume.Bytes, error) {
	free, err := mountedXFS{}.free(p.fs.Root())
	if err != nil {
		return 0, err
	}
	for _, u := range all {
		free -= max(0, u.Limit.Size-u.Used)
	}
	return -free, nil
}

// shortfallMessage describes a pool that is short, and a project that exceeds its quota, which is possible
// because ACLs are not limited.
func (p *directoryPool) shortfallMessage(short volume.Bytes, all map[quota.Project]quota.Usage) string {
	over := ""
	for id, u := range all {
		if id != 0 && u.Limit.Size > 0 && u.Used > u.Limit.Size {
			over = fmt.Sprintf(" (project %d has %s of %s)", id, u.Used, u.Limit.Size)
		}
	}
	return fmt.Sprintf("directory pool %s has %s less free than its quotas promise: either a pod has taken files out of its quota, or exceeds it by ACLs%s, or XFS needs more for itself than was estimated; find such files with `xfs_quota -x -c 'report -p'` and delete them, or enlarge the pool with `%s`", p.poolName(), short, over, p.poolName().CreateCommand())
}

// A kernelQuota is the quota that a volume should have, by its record.
type kernelQuota struct {
	project quota.Project
	limit   quota.Limit
}

// needsRaise reports whether the kernel's limit for the volume is lower, or missing: xfs_repair drops quotas
// that it cannot read, and people change them.
func (k kernelQuota) needsRaise(all map[quota.Project]quota.Usage) bool {
	has := all[k.project].Limit
	return has.Size < k.limit.Size || has.Inodes < k.limit.Inodes
}

// recordedQuota returns the quota that the record of a volume promises. holds is false if the volume is gone or
// its removal has already deleted its data, so that it needs no quota.
func (p *directoryPool) recordedQuota(name volume.Name) (k kernelQuota, holds bool, err error) {
	if _, err := p.Lstat(path.Join(volumePath(name), dataDir)); errors.Is(err, fs.ErrNotExist) && name.IsDoomed() {
		return k, false, nil
	}
	var rec directoryRecord
	if err := readJSON(p.Root, path.Join(volumePath(name), recordFile), &rec); err != nil {
		if _, lstatErr := p.Lstat(volumePath(name)); errors.Is(lstatErr, fs.ErrNotExist) {
			return k, false, nil
		}
		return k, false, err
	}
	t, err := volume.ParseTags(rec.Tags)
	return kernelQuota{rec.Project, limitOf(rec, t.Size)}, true, err
}

// ensureQuotas returns all quotas of the pool. Before, it raises those of volumes to what their records
// promise, and clears the quotas of projects without a volume and without files. Otherwise the room of a
// volume without a quota would be promised twice, and the room of a quota without a volume would be lost. The
// caller holds the pool's lock.
func (p *directoryPool) ensureQuotas() (map[quota.Project]quota.Usage, error) {
	all, err := quota.Projects(p.device.Path)
	if err != nil {
		return nil, err
	}
	names, err := p.volumes()
	if err != nil {
		return nil, err
	}
	had, set := map[quota.Project]bool{}, map[quota.Project]quota.Limit{}
	for _, name := range names {
		k, holds, err := p.recordedQuota(name)
		if err != nil {
			return nil, fmt.Errorf("what a volume in directory pool %s was promised is not known: %w", p.poolName(), err)
		}
		if had[k.project] = true; holds && k.needsRaise(all) {
			has := all[k.project].Limit
			set[k.project] = quota.Limit{Size: max(k.limit.Size, has.Size), Inodes: max(k.limit.Inodes, has.Inodes)}
		}
	}
	for id, u := range all {
		if id != 0 && !had[id] && u.Inodes == 0 && u.Limit != (quota.Limit{}) {
			set[id] = quota.Limit{}
		}
	}
	for id, limit := range set {
		if err := quota.SetOf(p.device.Path, id, limit); err != nil {
			return nil, err
		}
	}
	if len(set) == 0 {
		return all, nil
	}
	return quota.Projects(p.device.Path)
}

// restoreLost is ensureQuotas for callers that do not hold the pool's lock.
func (e *Engine) restoreLost(ctx context.Context, p *directoryPool) (map[quota.Project]quota.Usage, error) {
	release, err := e.lockPool(ctx, p.device.Group, p.name)
	if err != nil {
		return nil, err
	}
	defer release()
	return p.ensureQuotas()
}

// nextProject returns a project that no volume has had, after recording it.
func (p *directoryPool) nextProject() (quota.Project, error) {
	all, err := quota.Projects(p.device.Path)
	if err != nil {
		return 0, err
	}
	next := max(p.info.Project, 1) + 1 // project 1 belongs to volumes with a file system of their own
	for {
		if _, used := all[next]; !used {
			break
		}
		next++
	}
	p.info.Project = next
	return next, p.writeInfo()
}

// ensureQuota makes sure that a volume has the quota that its record promises. It writes only if something is
// missing, and lowers no limit. It runs at each mount, so its changes need not be durable.
func (p *directoryPool) ensureQuota(lv lvm.LogicalVolume, rec directoryRecord, size volume.Bytes) (err error) {
	root, err := p.Open(path.Join(volumePath(lv.Name), dataDir))
	if err != nil {
		return fmt.Errorf("open volume %s/%s: %w", lv.Group, lv.Name, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := quota.EnsureProjectOf(root, rec.Project); err != nil {
		return err
	}
	u, err := quota.ReadOf(p.device.Path, rec.Project)
	if err != nil {
		return err
	}
	want := limitOf(rec, size)
	want.Size, want.Inodes = max(want.Size, u.Limit.Size), max(want.Inodes, u.Limit.Inodes)
	if want == u.Limit {
		return nil
	}
	return quota.SetOf(p.device.Path, rec.Project, want)
}
