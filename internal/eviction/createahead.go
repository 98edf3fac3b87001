package eviction

import (
	"slices"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// MayCreateAhead reports whether the node may create the volume of a new PersistentVolume before its first mount.
// It goes by the view and the plan of the last round, which may not include that PersistentVolume.
//
// It may not if the volume is anything but an empty file system, if the node has a volume of that name in any
// state, or if there is too little room: then volumes must be evicted first, and the volume must not get room
// before the PersistentVolumes that wait for that. In a thin pool, the volume's charge must be free. In other
// pools, everything that is promised must fit in the free room.
func MayCreateAhead(view View, r Result, c *persistentvolume.Volume) bool {
	if !isEmptyFilesystem(c) || view.Cluster == "" || c.Cluster != view.Cluster || c.Deleting || !c.Usable() {
		return false
	}
	x := newIndex(view)
	group, there := x.group(c)
	if !there || x.groupProblems[c.Group] != "" || !c.InGroup(group.UUID) {
		return false
	}
	if _, exists := x.volumes[KeyOfPersistentVolume(c)]; exists || x.unreadable[c.Volume] {
		return false
	}
	at := slices.IndexFunc(r.Pools, func(p PoolResult) bool { return p.Pool.Name == c.Pool() })
	return at >= 0 && r.Pools[at].hasRoomFor(c, x.named[KeyOfPersistentVolume(c)])
}

// isEmptyFilesystem reports whether the volume is an empty file system and needs no key. A directory is created by its
// first mount.
func isEmptyFilesystem(c *persistentvolume.Volume) bool {
	return c.Kind == volume.Claim && c.Shape.Layout != volume.Directory && c.FSType != volume.Raw && !c.Encrypted && c.FS == "" && c.CloneOf == "" && !c.Declared && !c.Placeholder
}

// hasRoomFor reports whether a volume fits in the free room of the pool besides all that is promised there.
// promised: that includes the volume.
func (p *PoolResult) hasRoomFor(c *persistentvolume.Volume, promised bool) bool {
	charge := c.Charge().In(p.Pool.Extent)
	switch {
	case p.Closed != "":
		return false
	case p.Pool.Thin != nil:
		return charge <= p.Pool.Free // promises there take nothing before they are written
	case promised:
		return p.Promised <= freeToAllocate(p.Pool)
	}
	return p.Promised+charge <= freeToAllocate(p.Pool)
}
