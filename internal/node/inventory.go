package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Inventory returns every volume group of the host, and all of flexlvm's pools and volumes in them, as of one
// moment. It also updates and removes the notes about out-of-date copies of raid1 volumes (noteCopies), and notes which
// copy-on-write snapshots are invalid.
func (e *Engine) Inventory(ctx context.Context) (inventory.Inventory, error) {
	seen := e.now()
	all, err := e.lvm.Everything(ctx)
	if err != nil {
		return inventory.Inventory{}, err
	}
	e.noteCopies(ctx, all.Volumes, seen)
	e.noteInvalids(all.Volumes)
	var in inventory.Inventory
	copied := copiedGroups(all.Volumes)
	pools, lvs := splitPools(all.Volumes)
	if in.Volumes, err = e.describeAll(ctx, lvs, copied); err != nil {
		return inventory.Inventory{}, err
	}
	for _, g := range all.Groups {
		in.Pools = append(in.Pools, inventory.Pool{
			Name: volume.PoolOf(g.Name, ""), UUID: g.UUID, Size: g.Size, Free: g.Free, Extent: g.Extent,
			MetadataSize: g.MetadataSize, MetadataFree: g.MetadataFree, LVs: g.Volumes, Missing: g.Missing, Exported: g.Exported,
			DeviceFree: g.DeviceFree, Devices: g.DeviceNames,
		})
	}
	for i := range in.Volumes {
		if v := &in.Volumes[i]; v.State == volume.Ready && in.Exported(v) {
			v.Problem = fmt.Sprintf("its volume group is exported, so no pod can mount it until `vgimport %s`", v.Group)
			v.Degraded, v.Outdated, v.Copied = false, false, false
		}
	}
	in.Pools = addThinPools(in.Pools, all.ThinPools)
	for _, p := range pools {
		observed := e.observePool(ctx, p)
		observed.explainCopiedGroups(copied[p.UUID])
		in.Pools = addDirectoryPool(in.Pools, p, observed.pool)
		in.Volumes = append(in.Volumes, observed.volumes...)
	}
	return in, nil
}
