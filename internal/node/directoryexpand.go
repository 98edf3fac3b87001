package node

import (
	"context"
	"errors"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// expandDirectory is Expand for a directory volume: it raises the quota, and then the size in the volume's
// record.
func (e *Engine) expandDirectory(ctx context.Context, g volume.Group, pool, n volume.Name, size volume.Bytes, may func(t volume.Tags, groupUUID string) error) error {
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	return e.withPool(ctx, g, pool, func(p *directoryPool) error {
		lv, rec, err := p.read(n)
		if errors.Is(err, lvm.ErrNoVolume) {
			if known, rerr := e.records.hasRecordOf(g, n); known || rerr != nil {
				err = lostErr(e.records.file(g, n), err)
			}
		}
		if err != nil {
			return err
		}
		tags, err := ownedTags(lv)
		if err == nil {
			err = may(tags, p.device.GroupUUID)
		}
		if err != nil {
			return err
		}
		if tags.State != volume.Ready {
			return refused("volume %s/%s is %s; it can grow once it has been mounted", g, n, tags.State)
		}
		return e.growDirectory(ctx, p, lv, rec, tags, max(size, tags.Size))
	})
}

// growDirectory grows a volume whose lock the caller holds.
func (e *Engine) growDirectory(ctx context.Context, p *directoryPool, lv lvm.LogicalVolume, rec directoryRecord, tags volume.Tags, size volume.Bytes) error {
	release, err := e.lockPool(ctx, lv.Group, p.name)
	if err != nil {
		return err
	}
	defer release()
	if err := readJSON(p.Root, poolFile, &p.info); err != nil {
		return err
	}
	u, err := quota.ReadOf(p.device.Path, rec.Project)
	if err != nil {
		return err
	}
	want := limitOf(rec, size)
	want.Size, want.Inodes = max(want.Size, u.Limit.Size), max(want.Inodes, u.Limit.Inodes)
	if want != u.Limit {
		more := volume.DirectorySize(want.Size, want.Inodes) - volume.DirectorySize(u.Limit.Size, u.Limit.Inodes)
		if err := p.ensureRoom(ctx, more, want.Size-u.Limit.Size); err != nil {
			return err
		}
		// The quota comes first, because the pool's promises are computed from the quotas.
		if err := quota.SetOf(p.device.Path, rec.Project, want); err != nil {
			return err
		}
		e.after("set quota")
	}
	if size == tags.Size {
		return syncDir(p.Root, volumePath(lv.Name)) // the call that wrote its record may have been killed before it synced it
	}
	tags.Size = size
	rec.Tags = tags.Strings()
	if err := p.write(volumePath(lv.Name), rec); err != nil {
		return err
	}
	e.after("write directory record")
	if err := e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, tags)); err != nil {
		e.logUnrecorded(lv.Group, lv.Name, err) // the next mount writes it
	}
	e.after("write record")
	e.wakeDaemon() // as in expandLocked
	return nil
}
