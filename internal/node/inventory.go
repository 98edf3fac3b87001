package node

import (
	"context"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Inventory is all that this node holds, as of one report of LVM's.
type Inventory struct {
	Pools   []Pool
	Volumes []Volume
}

// A Pool is where volumes are cut from: a volume group, less the thin pools of ours
// in it, or such a thin pool.
type Pool struct {
	Name         volume.PoolName
	UUID         string
	Size         volume.Bytes
	Free         volume.Bytes
	Extent       volume.Bytes
	MetadataSize volume.Bytes // of the group, LVM's own
	MetadataFree volume.Bytes
	LVs          int // logical volumes, whoever owns them
	Missing      int // devices that LVM cannot find
	// DeviceFree is what is free on each physical device that room can be taken
	// from, the most first.
	DeviceFree []volume.Bytes
	// Devices are the paths of these physical devices.
	Devices []string
	// Thin is nil for a volume group.
	Thin *ThinPool
}

// GroupUUID is that of the volume group that the pool is, or lies in.
func (p Pool) GroupUUID() string {
	if p.Thin != nil {
		return p.Thin.GroupUUID
	}
	return p.UUID
}

// Inventory reports every volume group of the host, and every thin pool and volume
// of ours in them, of one moment.
func (e *Engine) Inventory(ctx context.Context) (Inventory, error) {
	all, err := e.lvm.Everything(ctx)
	if err != nil {
		return Inventory{}, err
	}
	var in Inventory
	if in.Volumes, err = e.describeAll(all.Volumes); err != nil {
		return Inventory{}, err
	}
	for _, g := range all.Groups {
		in.Pools = append(in.Pools, Pool{
			Name: volume.PoolOf(g.Name, ""), UUID: g.UUID, Size: g.Size, Free: g.Free, Extent: g.Extent,
			MetadataSize: g.MetadataSize, MetadataFree: g.MetadataFree, LVs: g.Volumes, Missing: g.Missing,
			DeviceFree: g.DeviceFree, Devices: g.DeviceNames,
		})
	}
	in.Pools = addThinPools(in.Pools, all.ThinPools)
	return in, nil
}

// Disposal is what becomes of a volume that nobody wants any more.
type Disposal = volume.Disposal
