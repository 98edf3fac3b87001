package eviction

import (
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Undercharge is a PersistentVolume that is charged less than its volume takes: the node has grown the
// volume, but its answer was lost, or the growth was withdrawn meanwhile. A volume never shrinks, so its room
// must not be promised to others, and a retry of the growth does not need it again.
type Undercharge struct {
	PV      string       // name of the PersistentVolume
	Charged volume.Bytes // the value for its annotation
}

// Undercharged returns the PersistentVolumes in use that are charged less than their volumes take.
func Undercharged(view View) []Undercharge {
	x := newIndex(view)
	var out []Undercharge
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		v, made := x.volumes[KeyOfPersistentVolume(c)]
		pool, there := x.pools[c.Pool()]
		if !made || !there || v.State != volume.Ready || !isVolumeOf(v, c) || !c.Usable() || c.Deleting || c.Kind == volume.Snapshot {
			continue
		}
		charge := c.Charge()
		if more := takes(v, c, pool) - charge.In(pool.Extent); more > 0 {
			out = append(out, Undercharge{PV: c.PV, Charged: charge.Noted + more})
		}
	}
	return out
}

// takes returns what a volume takes of its pool: the charge of the size in its tags, or, in a volume group, the
// size that LVM shows if that is larger, as while the room of a growth is zeroed. A volume that a person has
// converted counts as if it still had the layout of its PersistentVolume.
func takes(v *inventory.Volume, c *persistentvolume.Volume, pool inventory.Pool) volume.Bytes {
	grown := c.Grown(max(c.Promised(), v.Size))
	charge := grown.Charge().In(pool.Extent)
	if pool.Thin != nil || pool.Directories != nil {
		return charge
	}
	return max(charge, c.Shape.Takes(v.LargestDevice(v.Allocated), pool.Extent))
}
