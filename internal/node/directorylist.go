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

// lostAndFound is the directory for files that xfs_repair could not connect.
const lostAndFound = "lost+found"

// An observedPool is a directory pool and its volumes.
type observedPool struct {
	pool    inventory.Pool
	volumes []inventory.Volume
}

// observePool observes a directory pool. A pool that cannot be observed offers no room and records the
// reason, and its volumes are unknown; the rest of the node is reported as usual.
func (e *Engine) observePool(ctx context.Context, lv lvm.LogicalVolume) observedPool {
	name := volume.DirectoryPoolOf(lv.Group, lv.Name)
	out := observedPool{pool: inventory.Pool{
		Name: name, UUID: lv.UUID, Extent: volume.Block,
		Directories: &inventory.DirectoryPool{GroupUUID: lv.GroupUUID},
	}}
	t, err := poolTags(lv)
	if err == nil && t.State != volume.Ready {
		err = errors.New("it is " + poolNotFinished(name))
	}
	if err == nil {
		out.pool.Size = t.Size
		err = explainDeviceError(lv, e.withPool(ctx, lv.Group, lv.Name, func(p *directoryPool) error { return e.observeOpenPool(ctx, p, &out) }))
	}
	out.pool.Directories.Known = err == nil
	if err != nil {
		out.pool.Free, out.pool.LVs, out.volumes, out.pool.Directories.Unfit = 0, 0, nil, err.Error()
	} else if problem, _ := healthProblem(lv, false); problem != "" {
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
	seen, err := e.listDirectories(p, host[p.device.Number], everywhere)
	if err != nil {
		return err
	}
	out.volumes = seen.volumes
	if seen.lost {
		if seen.after, err = e.restoreLost(ctx, p); err != nil {
			return err
		}
	}
	short, err := p.shortfall(seen.after)
	if err != nil {
		return err
	}
	out.pool.Size = p.info.Size
	out.pool.Free = max(0, p.info.Size-seen.taken())
	advice, err := p.repairAdvice()
	switch {
	case err != nil:
		return err
	case advice != "":
		out.pool.Directories.Unfit = advice
	case short > 0:
		out.pool.Directories.Unfit = p.shortfallMessage(short, seen.after)
	}
	out.pool.LVs = len(out.volumes)
	return nil
}

// A listing is a directory pool as observed, without a lock, while volumes in it are created, grow and are
// removed. It holds the quotas from before and after, because quotas of another moment than the volumes would
// count a volume twice or not at all.
type listing struct {
	volumes       []inventory.Volume
	known         map[quota.Project]bool // of the volumes, and of unfinished ones
	lost          bool                   // a volume lacks its quota, or got it during the listing
	before, after map[quota.Project]quota.Usage
}

// taken returns how much of the pool is not free: the room of the listed volumes, and that of other projects.
func (l *listing) taken() (sum volume.Bytes) {
	for i := range l.volumes {
		sum += l.volumes[i].Allocated
	}
	for id, u := range l.after {
		_, lasts := l.before[id]
		switch {
		case id == 0:
		case l.known[id] && u.Limit.Size > 0:
			sum += max(0, u.Used-u.Limit.Size) // ACLs are not limited
		case !l.known[id] && lasts: // otherwise it was created during the listing, and its claim still counts as waiting
			sum += takesOf(u)
		}
	}
	return sum
}

// listDirectories observes the volumes of a directory pool. A volume created meanwhile is found unfinished,
// or is listed as a volume, or had no quota before.
func (e *Engine) listDirectories(p *directoryPool, host, everywhere []mount.Point) (l *listing, err error) {
	l = &listing{}
	if l.before, err = quota.Projects(p.device.Path); err != nil {
		return l, err
	}
	l.known = p.unfinishedProjects()
	names, err := p.volumes()
	if err != nil {
		return l, err
	}
	for i := 0; i < len(names); i++ {
		v, k, there := e.describeDirectory(p, names[i], host, everywhere)
		if !there {
			if doomed := names[i].Doomed(); !names[i].IsDoomed() && !slices.Contains(names, doomed) {
				names = append(names, doomed) // it was doomed after the names were read
			}
			continue
		}
		l.volumes = append(l.volumes, v)
		l.lost = l.lost || k.needsRaise(l.before)
		if v.State != "" { // otherwise its size is unknown, and its quota counts
			l.known[k.project] = true
		}
	}
	l.after, err = quota.Projects(p.device.Path)
	return l, err
}

// describeDirectory is describe for a volume of a directory pool. It also returns the quota that the volume
// should have; false if the volume is gone. host are the mounts of the pool in this mount namespace, and
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
	k := kernelQuota{project: rec.Project}
	if v.State != "" && v.State != volume.Doomed { // the quota of a doomed volume is about to be cleared
		k.limit = limitOf(rec, v.Size)
	}
	return v, k, true
}

// problemEntry returns a faulty pool as a volume with a Problem, for people who list volumes. It returns false if the
// pool is healthy.
func (o observedPool) problemEntry(lv lvm.LogicalVolume) (inventory.Volume, bool) {
	why, what := o.pool.Directories.Unfit, "takes no new volumes"
	if o.pool.VolumesUnknown() {
		what = "cannot be read, so its volumes are not known"
	}
	return inventory.Volume{
		Group: lv.Group, GroupUUID: lv.GroupUUID, Name: lv.Name, UUID: lv.UUID, Allocated: lv.Takes(), Created: lv.Created,
		Shape:   volume.Shape{Layout: volume.Directory, DirectoryPool: lv.Name},
		Problem: fmt.Sprintf("directory pool %s %s: %s", o.pool.Name, what, why),
	}, why != ""
}

// addDirectoryPool adds a directory pool to the pools, and subtracts its size from the group that contains
// it, so that nothing is counted twice.
func addDirectoryPool(pools []inventory.Pool, lv lvm.LogicalVolume, pool inventory.Pool) []inventory.Pool {
	for i := range pools {
		g := &pools[i]
		if g.UUID != lv.GroupUUID || g.Thin != nil || g.Directories != nil {
			continue
		}
		g.Size = max(g.Free, g.Size-lv.Takes())
		g.LVs = max(0, g.LVs-1)
		pool.MetadataSize, pool.MetadataFree, pool.Devices = g.MetadataSize, g.MetadataFree, nil
		pool.Missing, pool.Exported = g.Missing, g.Exported
		return append(pools, pool)
	}
	return pools
}
