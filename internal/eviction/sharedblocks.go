package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// addShared counts the blocks of thin volumes that PersistentVolumes are promised and seem to have written, but
// that are shared. A volume's Allocated counts the blocks that it shares with its copies and snapshots, and
// overwriting such a block allocates a new one from the pool.
//
// It is not known which volumes share blocks, only that all together hold more than the pool has in use. Other
// volumes are assumed to share nothing, so PersistentVolumes have at least the rest of what is in use. What a
// volume holds beyond its charge was not promised. Replicas count as other volumes, because a replica that
// makes room for itself would be created again endlessly.
//
// Snapshots are never written, so the sum is at most what all other volumes have written.
//
// Evicting a volume that shares blocks frees less than its Allocated, but this sum falls by the difference, so a
// plan may count on all of Allocated.
func (p *planner) addShared() {
	promised := p.writtenOfCharges()
	for _, pool := range p.pools {
		if pool.Thin == nil || !pool.Thin.Known {
			continue
		}
		written, others, overwritten := volume.Bytes(0), pool.Thin.Others, volume.Bytes(0)
		for i := range p.view.Volumes {
			v := &p.view.Volumes[i]
			if !pool.Holds(v) {
				continue
			}
			if charged, is := promised[v]; is {
				written += charged
				if v.Kind != volume.Snapshot {
					overwritten += charged
				}
			} else if v.Active { // LVM does not report what an inactive volume holds
				others += v.Allocated
			}
		}
		shared := min(written-max(0, pool.Size-pool.Free-others), overwritten)
		if shared > pool.Size/thinSlack { // a smaller difference may be LVM's rounding
			pool.shared, pool.result.Shared = shared, shared
			pool.result.Promised += shared
		}
	}
}

// writtenOfCharges returns how much of its charge each thin volume of a PersistentVolume holds.
func (p *planner) writtenOfCharges() map[*inventory.Volume]volume.Bytes {
	out := map[*inventory.Volume]volume.Bytes{}
	for i := range p.view.PersistentVolumes {
		c := &p.view.PersistentVolumes[i]
		v, made := p.index.volumes[KeyOfPersistentVolume(c)]
		if !made || c.Kind == volume.Dataset || !p.usable(c) || !isVolumeOf(v, c) || v.Pool() != c.Pool() {
			continue
		}
		out[v] = max(out[v], min(v.Allocated, c.Charge().In(p.byName[c.Pool()].Extent)))
	}
	return out
}

// isVolumeOf reports whether a volume is that of a PersistentVolume, and not a leftover of another one.
func isVolumeOf(v *inventory.Volume, c *persistentvolume.Volume) bool {
	return (v.State == volume.Creating || v.State == volume.Ready) && v.Cluster == c.Cluster && (c.FS == "" || v.FS == c.FS)
}

// describeOverwriting describes what PersistentVolumes need for shared blocks.
func (p *poolPlan) describeOverwriting() string {
	return fmt.Sprintf("%s to overwrite what copies and snapshots share", p.roundUp(p.shared))
}
