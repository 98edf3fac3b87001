package node

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// boundRetries makes the file system of a thin volume give up if the pool accepts no more writes, instead of
// retrying forever. On any other device it changes nothing: the device has its room, and an error of its disk
// may pass.
func (e *Engine) boundRetries(f openedVolume) error {
	thin, err := lvm.Thin(f.device.Number)
	if err != nil || !thin {
		return err
	}
	return f.content.mounted(f.content.path).boundRetries(f.content.number)
}

// flushPoolMessages makes LVM send its thin pool the creation of a volume that is in LVM's metadata but not in
// the pool, because the power failed in between. LVM (2.03.16) keeps such messages, and sends them only when
// it creates another volume in the pool, not when it activates one; until then the kernel knows no such
// device. The other volume is created as one that is being removed, so that the node daemon removes it if this
// call is killed.
func (e *Engine) flushPoolMessages(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags) error {
	tags.State = volume.Unreferenced
	other := lvm.LogicalVolume{Group: lv.Group, Name: lv.Name.Doomed(), Size: volume.DefaultExtent, Shape: lv.Shape, Tags: tags.Strings()}
	if err := e.lvm.Create(ctx, other); err != nil {
		return fmt.Errorf("make LVM tell its thin pool of volume %s/%s: %w", lv.Group, lv.Name, err)
	}
	other, err := e.lvm.Volume(ctx, other.Group, other.Name)
	if err != nil {
		return err
	}
	return e.lvm.Remove(ctx, other)
}

// addThinPools appends flexlvm's thin pools to the groups, and subtracts their size from the groups that
// contain them, so that nothing is counted twice.
func addThinPools(groups []inventory.Pool, all []lvm.ThinPool) []inventory.Pool {
	var thin []inventory.Pool
	reserve := map[string]volume.Bytes{} // by the group's UUID
	for _, p := range all {
		for i := range groups {
			g := &groups[i]
			if g.UUID != p.GroupUUID {
				continue
			}
			// LVM reserves as much as the largest metadata volume, once per group.
			more := max(0, p.Metadata-reserve[g.UUID])
			reserve[g.UUID] += more
			g.Size = max(g.Free, g.Size-p.Takes()-more)
			g.LVs = max(0, g.LVs-1-p.Volumes)
			thin = append(thin, thinPool(p, *g))
		}
	}
	return append(groups, thin...)
}

func thinPool(p lvm.ThinPool, g inventory.Pool) inventory.Pool {
	return inventory.Pool{
		Name: volume.PoolOf(p.Group, p.Name), UUID: p.UUID,
		Size: p.Size, Free: p.Size - p.Used, Extent: p.Extent,
		MetadataSize: g.MetadataSize, MetadataFree: g.MetadataFree,
		LVs: p.Volumes, Missing: g.Missing, Exported: g.Exported, Devices: g.Devices,
		Thin: &inventory.ThinPool{
			GroupUUID: g.UUID, Known: p.Active, Metadata: p.Metadata, MetadataUsed: p.MetadataUsed,
			Others: p.Others.Data, Unreported: p.Others.Unreported, Unfit: p.Unfit(),
		},
	}
}
