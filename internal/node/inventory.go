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

// A Pool is where volumes are cut from: a volume group.
type Pool struct {
	Name         volume.Group
	UUID         string
	Size         volume.Bytes
	Free         volume.Bytes
	Extent       volume.Bytes
	MetadataSize volume.Bytes
	MetadataFree volume.Bytes
	LVs          int // logical volumes, whoever owns them
	Missing      int // devices that LVM cannot find
	// DeviceFree is what is free on each physical device that room can be taken
	// from, the most first.
	DeviceFree []volume.Bytes
}

// Inventory reports every volume group of the host and every volume of ours in
// them, of one moment.
func (e *Engine) Inventory(ctx context.Context) (Inventory, error) {
	groups, lvs, err := e.lvm.Everything(ctx)
	if err != nil {
		return Inventory{}, err
	}
	var in Inventory
	if in.Volumes, err = e.describeAll(lvs); err != nil {
		return Inventory{}, err
	}
	for _, g := range groups {
		in.Pools = append(in.Pools, Pool{
			Name: g.Name, UUID: g.UUID, Size: g.Size, Free: g.Free, Extent: g.Extent,
			MetadataSize: g.MetadataSize, MetadataFree: g.MetadataFree, LVs: g.Volumes, Missing: g.Missing,
			DeviceFree: g.DeviceFree,
		})
	}
	return in, nil
}

// Disposal is what becomes of a volume that nobody wants any more.
type Disposal = volume.Disposal
