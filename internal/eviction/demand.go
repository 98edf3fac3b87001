package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A demand is what one PersistentVolume still needs of its pool: a volume that does not exist yet, the
// unwritten part of a thin one, or a growth that has not reached the node.
type demand struct {
	pv   *persistentvolume.Volume
	need volume.Bytes
	// devices is the number of physical devices on which it needs share each; only lists the possible devices,
	// nil means any.
	devices        int
	share          volume.Bytes
	allowedDevices []string
}

// multiDevice reports whether the demand needs several physical devices.
func (d demand) multiDevice() bool { return d.devices > 1 }

// addDemands adds to each pool what is promised in it, the smallest first.
func (p *planner) addDemands() {
	by := map[Key]demand{} // two PersistentVolumes of one volume count once
	for i := range p.view.PersistentVolumes {
		c := &p.view.PersistentVolumes[i]
		need := p.need(c)
		if other, there := by[KeyOfPersistentVolume(c)]; need > other.need || there && need == other.need && c.PV < other.pv.PV {
			by[KeyOfPersistentVolume(c)] = p.demand(c, need)
		}
		if growth := p.thinGrowth(c); growth > 0 {
			p.byName[c.Pool()].thinGrowth = append(p.byName[c.Pool()].thinGrowth, growth)
		}
	}
	for _, d := range by {
		pool := p.byName[d.pv.Pool()]
		pool.demands = append(pool.demands, d)
		pool.result.Promised += d.need
	}
	p.addShared()
	for _, pool := range p.pools {
		slices.SortFunc(pool.demands, func(a, b demand) int {
			return cmp.Or(cmp.Compare(a.need, b.need), cmp.Compare(a.pv.PV, b.pv.PV), cmp.Compare(a.pv.Volume, b.pv.Volume))
		})
	}
}

// demand returns what a PersistentVolume needs, by device. The mirror copies of a volume grow only on their
// devices.
func (p *planner) demand(c *persistentvolume.Volume, need volume.Bytes) demand {
	d := demand{pv: c, need: need, devices: c.Shape.Devices()}
	v, exists := p.index.volumes[KeyOfPersistentVolume(c)]
	if exists {
		d.devices = v.Devices()
		d.share = need / volume.Bytes(d.devices)
		if v.Layout == volume.Raid1 && v.ByDevice != nil {
			d.allowedDevices = slices.Sorted(maps.Keys(v.ByDevice))
		}
		return d
	}
	d.share = c.Shape.Share(c.DeviceSize(c.Promised()), p.byName[c.Pool()].Extent)
	return d
}

// need returns what a PersistentVolume still needs, in bytes.
func (p *planner) need(c *persistentvolume.Volume) volume.Bytes {
	if !p.usable(c) {
		return 0
	}
	pool := p.byName[c.Pool()]
	extent, device := max(pool.Extent, 1), c.DeviceSize(c.Promised())
	v, exists := p.index.volumes[KeyOfPersistentVolume(c)]
	switch {
	case !exists && p.view.staysGone(c):
		return 0
	case !exists:
		return c.Charge().In(pool.Extent)
	case !isVolumeOf(v, c):
		return 0
	case c.Taken:
		return 0 // a snapshot is never written, and never grows
	case pool.Thin != nil:
		// It needs what it was promised and has not written; see addShared for the rest.
		return max(0, c.Charge().In(pool.Extent)-v.Allocated)
	case v.Size >= c.Promised():
		// The tag says that it is as large as promised. A later release that would make the device larger must
		// not evict any data for that.
		return 0
	}
	return max(0, v.Takes(device, extent)-v.Allocated)
}

// usable reports whether a pod can use the volume of a PersistentVolume here. It cannot if that is released, or
// of another cluster or group.
func (p *planner) usable(c *persistentvolume.Volume) bool {
	pool, there := p.byName[c.Pool()]
	switch {
	case !there, !c.Usable(), p.view.givenUp(c):
		return false
	case c.Cluster != "" && c.Cluster != p.view.Cluster:
		return false
	}
	return c.InGroup(pool.GroupUUID())
}

// thinGrowth returns what must be free in a thin pool at one moment to grow a volume to its promised size; 0 for
// nothing. That may be more than the volume needs, because a pool may be overcommitted, and growing allocates
// nothing.
func (p *planner) thinGrowth(c *persistentvolume.Volume) volume.Bytes {
	v, exists := p.index.volumes[KeyOfPersistentVolume(c)]
	if !exists || !p.usable(c) || p.byName[c.Pool()].Thin == nil || v.State != volume.Ready || v.Size >= c.Promised() {
		return 0
	}
	return max(0, c.DeviceSize(c.Promised())-v.AllocatedWhenFull)
}

// waiting returns the PersistentVolumes whose demands a pool cannot meet even after all possible evictions. It serves
// the smallest demands first.
func (p *poolPlan) waiting() (out []*persistentvolume.Volume) {
	left := p.roomSoon().with(p.queue)
	for _, d := range p.demands {
		if !left.allocate(d) {
			out = append(out, d.pv)
		}
	}
	return out
}
