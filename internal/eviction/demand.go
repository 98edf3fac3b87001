package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A demand is what one PersistentVolume still needs of its pool: a volume that no pod has
// mounted yet, or a growth that has not come to the node yet.
type demand struct {
	pv   *persistentvolume.Volume
	need volume.Bytes
	// devices is how many physical devices it needs share of, each; only names those that
	// it may lie on, nil for any.
	devices int
	share   volume.Bytes
	only    []string
}

// wide reports whether it needs several physical devices.
func (d demand) wide() bool { return d.devices > 1 }

// addDemands gives each pool what is promised in it, the smallest first.
func (p *planner) addDemands() {
	by := map[Key]demand{} // two PersistentVolumes of one volume promise it once
	for i := range p.view.PersistentVolumes {
		c := &p.view.PersistentVolumes[i]
		need := p.need(c)
		if other, there := by[KeyOfPersistentVolume(c)]; need > other.need || there && need == other.need && c.PV < other.pv.PV {
			by[KeyOfPersistentVolume(c)] = p.demand(c, need)
		}
		if once := p.atOnce(c); once > 0 {
			p.byName[c.Pool()].atOnce = append(p.byName[c.Pool()].atOnce, once)
		}
	}
	for _, d := range by {
		in := p.byName[d.pv.Pool()]
		in.demands = append(in.demands, d)
		in.result.Promised += d.need
	}
	p.addShared()
	for _, in := range p.pools {
		slices.SortFunc(in.demands, func(a, b demand) int {
			return cmp.Or(cmp.Compare(a.need, b.need), cmp.Compare(a.pv.PV, b.pv.PV), cmp.Compare(a.pv.Volume, b.pv.Volume))
		})
	}
}

// demand is what a PersistentVolume needs, by device. The copies of a volume grow only on the devices
// that they lie on.
func (p *planner) demand(c *persistentvolume.Volume, need volume.Bytes) demand {
	d := demand{pv: c, need: need, devices: c.Shape.Devices()}
	v, made := p.index.volumes[KeyOfPersistentVolume(c)]
	if made {
		d.devices = v.Devices()
		d.share = need / volume.Bytes(d.devices)
		if v.Layout == volume.Raid1 && v.On != nil {
			d.only = slices.Sorted(maps.Keys(v.On))
		}
		return d
	}
	d.share = c.Shape.Share(c.DeviceSize(c.Promised()), p.byName[c.Pool()].Extent)
	return d
}

// need is what a PersistentVolume still needs, 0 for nothing.
func (p *planner) need(c *persistentvolume.Volume) volume.Bytes {
	if !p.usable(c) {
		return 0
	}
	in := p.byName[c.Pool()]
	grain, device := max(in.Extent, 1), c.DeviceSize(c.Promised())
	v, made := p.index.volumes[KeyOfPersistentVolume(c)]
	switch {
	case !made && p.view.staysGone(c):
		return 0
	case !made:
		return c.Charge().In(in.Extent)
	case !isOf(v, c):
		return 0
	case c.Taken:
		return 0 // a snapshot is never written, and never grows
	case in.Thin != nil:
		// What it was promised and has not written yet; see addShared for the rest.
		return max(0, c.Charge().In(in.Extent)-v.Device)
	case v.Size >= c.Promised():
		// Its tag says that it is as large as promised; that a later release would make its
		// device larger is no reason to take anybody's data away.
		return 0
	}
	return max(0, v.Takes(device, grain)-v.Device)
}

// usable reports whether a pod can use the volume of a PersistentVolume here. One that is released,
// or made for another cluster or group, needs nothing.
func (p *planner) usable(c *persistentvolume.Volume) bool {
	in, there := p.byName[c.Pool()]
	switch {
	case !there, !c.Usable(), p.view.givenUp(c):
		return false
	case c.Cluster != "" && c.Cluster != p.view.Cluster:
		return false
	}
	return c.InGroup(in.GroupUUID())
}

// atOnce is what must be free in a thin pool at one moment, so that a volume there can be
// made as large as promised; 0 for nothing. It may be more than is needed, for a pool may
// be overcommitted, and growing takes nothing of it.
func (p *planner) atOnce(c *persistentvolume.Volume) volume.Bytes {
	v, made := p.index.volumes[KeyOfPersistentVolume(c)]
	if !made || !p.usable(c) || p.byName[c.Pool()].Thin == nil || v.State != volume.Ready || v.Size >= c.Promised() {
		return 0
	}
	return max(0, c.DeviceSize(c.Promised())-v.Full)
}

// Waiting returns the PersistentVolumes of each pool whose volumes do not fit even with all evictable room.
// The smallest are served first.
func Waiting(view View, r Result) map[volume.PoolName][]*persistentvolume.Volume {
	p := planner{view: view, index: newIndex(view)}
	p.openPools()
	p.addDemands()
	out := map[volume.PoolName][]*persistentvolume.Volume{}
	for _, result := range r.Pools {
		in := p.byName[result.Pool.Name]
		left := room{total: result.Pool.Free + result.Reclaimable, on: freeOn(result.Pool)}
		for i, reclaimable := range result.DeviceReclaimable {
			left.on[result.Pool.Devices[i]] += reclaimable
		}
		for i := range view.Volumes {
			v := &view.Volumes[i]
			if (v.State == volume.Doomed || view.isBeingRemoved(v)) && v.Pool() == result.Pool.Name && v.Cluster == view.Cluster {
				left.total += v.Device
			}
		}
		for _, want := range in.demands {
			if !left.serve(want) {
				out[result.Pool.Name] = append(out[result.Pool.Name], want.pv)
			}
		}
	}
	return out
}
