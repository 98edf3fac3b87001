package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// lostAndFound is where xfs_repair puts what it could not connect.
const lostAndFound = "lost+found"

// mostListings is how often a directory pool is listed where volumes go meanwhile.
const mostListings = 3

// An observedPool is a directory pool and its volumes.
type observedPool struct {
	pool    inventory.Pool
	volumes []inventory.Volume
}

// observePool looks into a directory pool. One that cannot be looked into offers nothing and says
// why, and which volumes are in it is not known then; that keeps nobody from what else the node
// has.
func (e *Engine) observePool(ctx context.Context, lv lvm.LogicalVolume) observedPool {
	name := volume.DirectoryPoolOf(lv.Group, lv.Name)
	out := observedPool{pool: inventory.Pool{
		Name: name, UUID: lv.UUID, Extent: volume.Block,
		Directories: &inventory.DirectoryPool{GroupUUID: lv.GroupUUID},
	}}
	t, err := poolTags(lv)
	if err == nil && t.State != volume.Ready {
		err = errors.New("it is not finished; call `flexlvm directories create` again")
	}
	if err == nil {
		out.pool.Size = t.Size
		err = e.withPool(ctx, lv.Group, lv.Name, func(p *directoryPool) error { return e.observeOpenPool(ctx, p, &out) })
	}
	out.pool.Directories.Known = err == nil
	if err != nil {
		out.pool.Free, out.pool.LVs, out.volumes, out.pool.Directories.Unfit = 0, 0, nil, err.Error()
	} else if problem, _ := ill(lv); problem != "" {
		out.pool.Directories.Unfit = problem
	}
	return out
}

func (e *Engine) observeOpenPool(ctx context.Context, p *directoryPool, out *observedPool) error {
	host, err := mount.ByDevice()
	if err != nil {
		return err
	}
	everywhere, err := mount.Everywhere(mount.Proc, p.device.Number)
	if err != nil {
		return err
	}
	volumes, all, lost, err := e.listDirectories(p, host[p.device.Number], everywhere)
	if err != nil {
		return err
	}
	out.volumes = volumes
	if lost {
		if all, err = e.restoreLost(ctx, p); err != nil {
			return err
		}
	}
	short, err := p.short(all)
	if err != nil {
		return err
	}
	out.pool.Size = p.info.Size
	out.pool.Free = max(0, p.info.Size-promised(all))
	others, err := p.others()
	switch {
	case err != nil:
		return err
	case slices.Contains(others, lostAndFound):
		out.pool.Directories.Unfit = fmt.Sprintf("xfs_repair has moved files of directory pool %s, perhaps whole volumes, to %s: mount it, and put them back where they were", p.path(), lostAndFound)
	case short > 0:
		out.pool.Directories.Unfit = p.taken(short, all)
	}
	out.pool.LVs = len(out.volumes)
	return nil
}

// listDirectories returns the volumes of a directory pool and all quotas in it, and whether one
// lacks its quota. One that is gone as it is looked at may be about to be removed, under a name
// that was not there as the names were read: then the listing starts over.
func (e *Engine) listDirectories(p *directoryPool, host, everywhere []mount.Point) (volumes []inventory.Volume, all map[quota.Project]quota.Usage, lost bool, err error) {
	for range mostListings {
		if all, err = quota.Projects(p.device.Path); err != nil {
			return nil, nil, false, err
		}
		names, err := p.volumes()
		if err != nil {
			return nil, nil, false, err
		}
		volumes, lost = nil, false
		for _, name := range names {
			if v, k, there := e.describeDirectory(p, name, host, everywhere); there {
				volumes = append(volumes, v)
				lost = lost || k.lacking(all)
			}
		}
		if len(volumes) == len(names) {
			break
		}
	}
	return volumes, all, lost, nil
}

// describeDirectory is describe of a volume of a directory pool, and the quota that it is to have;
// false if it is gone meanwhile. host are the mounts of the pool in this mount namespace, and
// everywhere those in any.
func (e *Engine) describeDirectory(p *directoryPool, n volume.Name, host, everywhere []mount.Point) (inventory.Volume, kernelQuota, bool) {
	lv, rec, err := p.read(n)
	if errors.Is(err, lvm.ErrNoVolume) {
		return inventory.Volume{}, kernelQuota{}, false
	}
	if err != nil {
		return inventory.Volume{
			Group: p.device.Group, GroupUUID: p.device.GroupUUID, Name: n, Problem: err.Error(),
			Shape: volume.Shape{Layout: volume.Directory, DirectoryPool: p.name},
		}, kernelQuota{}, true
	}
	lv.Open = len(mountsOfDirectory(n, everywhere)) > 0
	v := e.describe(lv)
	v.Mounts = mountsOfDirectory(n, host)
	if v.State == "" || v.State == volume.Doomed {
		return v, kernelQuota{}, true // the quota of one that goes is cleared in time
	}
	return v, kernelQuota{rec.Project, limitOf(rec, v.Size)}, true
}

// told is a pool that something is wrong with among volumes, for people who list those; false if
// nothing is.
func (o observedPool) told(lv lvm.LogicalVolume) (inventory.Volume, bool) {
	why, what := o.pool.Directories.Unfit, "takes no new volumes"
	if o.pool.Unseen() {
		what = "cannot be looked into, so its volumes are not known"
	}
	return inventory.Volume{
		Group: lv.Group, GroupUUID: lv.GroupUUID, Name: lv.Name, UUID: lv.UUID, Device: lv.Takes(), Created: lv.Created,
		Shape:   volume.Shape{Layout: volume.Directory, DirectoryPool: lv.Name},
		Problem: fmt.Sprintf("directory pool %s %s: %s", o.pool.Name, what, why),
	}, why != ""
}

// addDirectoryPool puts a directory pool beside the group that it lies in, and takes off the
// group what is its: nothing is counted twice.
func addDirectoryPool(pools []inventory.Pool, lv lvm.LogicalVolume, pool inventory.Pool) []inventory.Pool {
	for i := range pools {
		g := &pools[i]
		if g.UUID != lv.GroupUUID || g.Thin != nil || g.Directories != nil {
			continue
		}
		g.Size = max(g.Free, g.Size-lv.Takes())
		g.LVs = max(0, g.LVs-1)
		pool.MetadataSize, pool.MetadataFree, pool.Missing, pool.Devices = g.MetadataSize, g.MetadataFree, g.Missing, nil
		return append(pools, pool)
	}
	return pools
}
