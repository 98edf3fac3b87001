package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// volumeOf looks up the volume that ref refers to under the name n, like lvm.Volume. It looks up a directory
// volume only in its pool; the error is lvm.ErrNoVolume only if that pool was read and does not have the
// volume, or LVM shows that there is no such pool.
func (e *Engine) volumeOf(ctx context.Context, ref Ref, n volume.Name) (lv lvm.LogicalVolume, err error) {
	if ref.DirectoryPool == "" {
		return e.lvm.Volume(ctx, ref.Group, n)
	}
	return e.inPool(ctx, ref.Group, ref.DirectoryPool, n)
}

// lookUpByName is lvm.Volume for directory volumes as well, for people who give only a name. The error is
// lvm.ErrNoVolume only if LVM shows no such volume and none of the group's directory pools holds one.
func (e *Engine) lookUpByName(ctx context.Context, g volume.Group, n volume.Name) (lvm.LogicalVolume, error) {
	lv, err := e.lvm.Volume(ctx, g, n)
	if !errors.Is(err, lvm.ErrNoVolume) {
		return lv, err
	}
	pools, poolsErr := e.poolsOf(ctx, g)
	if poolsErr != nil {
		return lv, poolsErr
	}
	for _, pool := range pools {
		found, inPoolErr := e.inPool(ctx, pool.Group, pool.Name, n)
		if !errors.Is(inPoolErr, lvm.ErrNoVolume) {
			return found, inPoolErr
		}
	}
	return lv, err
}

// inPool looks up a volume in a pool, including whether it is in use.
func (e *Engine) inPool(ctx context.Context, g volume.Group, pool, n volume.Name) (lv lvm.LogicalVolume, err error) {
	err = e.withPool(ctx, g, pool, func(p *directoryPool) error {
		if lv, _, err = p.read(n); err == nil {
			lv.Open, err = p.inUse(n)
		}
		return err
	})
	return lv, err
}

// withPool calls f with an open pool.
func (e *Engine) withPool(ctx context.Context, g volume.Group, n volume.Name, f func(*directoryPool) error) error {
	p, err := e.openPool(ctx, g, n)
	if err != nil {
		return err
	}
	return errors.Join(f(p), p.close())
}

// retag removes and adds tags of a volume, durably, whatever its layout.
func (e *Engine) retag(ctx context.Context, lv lvm.LogicalVolume, del, add []string) error {
	if lv.Shape.Layout != volume.Directory {
		return e.lvm.Retag(ctx, lv, del, add)
	}
	return e.withPool(ctx, lv.Group, lv.Shape.DirectoryPool, func(p *directoryPool) error {
		now, rec, err := p.read(lv.Name)
		if err != nil {
			return err
		}
		if now.UUID != lv.UUID {
			return fmt.Errorf("tag volume %s/%s: it has changed meanwhile; try again", lv.Group, lv.Name)
		}
		rec.Tags = slices.DeleteFunc(rec.Tags, func(t string) bool { return slices.Contains(del, t) })
		for _, t := range add {
			if !slices.Contains(rec.Tags, t) {
				rec.Tags = append(rec.Tags, t)
			}
		}
		return p.write(volumePath(lv.Name), rec)
	})
}

// flushTags makes the last change of a volume's tags durable.
func (e *Engine) flushTags(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Directory {
		return e.lvm.Flush(ctx, lv.Group, lv.Name)
	}
	return e.withPool(ctx, lv.Group, lv.Shape.DirectoryPool, func(p *directoryPool) error {
		return syncDir(p.Root, volumePath(lv.Name))
	})
}

// renameVolume gives a volume its doomed name, durably, whatever its layout.
func (e *Engine) renameVolume(ctx context.Context, lv lvm.LogicalVolume, to volume.Name) error {
	if lv.Shape.Layout != volume.Directory {
		return e.lvm.Rename(ctx, lv, to)
	}
	return e.withPool(ctx, lv.Group, lv.Shape.DirectoryPool, func(p *directoryPool) error {
		now, _, err := p.read(lv.Name)
		if err != nil {
			return err
		}
		if now.UUID != lv.UUID {
			return fmt.Errorf("rename volume %s/%s: it was replaced; try again", lv.Group, lv.Name)
		}
		if err := p.Rename(volumePath(lv.Name), volumePath(to)); err != nil {
			return fmt.Errorf("rename volume %s/%s: %w", lv.Group, lv.Name, err)
		}
		return errors.Join(syncDir(p.Root, path.Dir(volumePath(lv.Name))), syncDir(p.Root, path.Dir(volumePath(to))))
	})
}

// removeVolume removes a volume that is doomed, whatever its layout.
func (e *Engine) removeVolume(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Directory {
		return e.lvm.Remove(ctx, lv)
	}
	return e.withPool(ctx, lv.Group, lv.Shape.DirectoryPool, func(p *directoryPool) error {
		now, rec, err := p.read(lv.Name)
		if err != nil {
			return err
		}
		if now.UUID != lv.UUID || !lv.Name.IsDoomed() {
			return fmt.Errorf("remove volume %s/%s: it was replaced, or was not given up; try again", lv.Group, lv.Name)
		}
		// flexlvm starts no mount of a doomed volume, but others may.
		if now.Open, err = p.inUse(lv.Name); err != nil {
			return err
		} else if now.Open {
			return inUseErr(Ref{Group: lv.Group, Name: lv.Name}, now)
		}
		if err := e.clearData(ctx, p, path.Join(volumePath(lv.Name), dataDir)); err != nil {
			return err
		}
		if err := e.awaitFreed(ctx, p, rec); err != nil {
			return err
		}
		if err := e.clearQuota(ctx, p, rec); err != nil {
			return err
		}
		return p.dropRecord(lv.Name, e.after)
	})
}
