package eviction

import (
	"cmp"
	"slices"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unmadeCopy reports whether c is a copy that is not finished: its volume is not there, is still
// creating, or has unreadable tags; or, for a snapshot, it is not recorded as taken. Until it is finished, its source must stay, because an interrupted
// copy starts over. A copy that can never be made, because nobody wants it any more or it is not of
// this cluster or volume group, does not count.
func (x *index) unmadeCopy(view View, c *persistentvolume.Volume) bool {
	if c.CloneOf == "" || c.Taken || !c.Usable() && !c.Placeholder || view.givenUp(c) || c.Cluster != view.Cluster {
		return false
	}
	group, there := x.group(c)
	if !there || !c.InGroup(group.UUID) {
		return false
	}
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	return !there || v.State == volume.Creating || v.State == "" || c.Kind == volume.Snapshot
}

// beingCopied returns the name of the PersistentVolume that is to begin as a copy of this
// one's volume, or nothing. A volume that is not there cannot be saved for it, and one that
// has been moved on already can be copied in its new state.
func (x *index) beingCopied(c *persistentvolume.Volume) string {
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	if !there || v.State != volume.Ready && v.State != volume.Creating {
		return ""
	}
	return x.copied[KeyOfPersistentVolume(c)]
}

// Copies returns the PersistentVolumes whose volumes are to be made now as copies of others, in order of
// their names. An encrypted one is made by its first mount, which brings the key,
// unless it is a snapshot, or a full copy that is not whole yet, which need none.
func Copies(view View) []persistentvolume.Volume {
	x := newIndex(view)
	var out []persistentvolume.Volume
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		v, there := x.volumes[KeyOfPersistentVolume(c)]
		byMount := c.Encrypted && c.Kind != volume.Snapshot && (c.Shape.Layout == volume.Thin || there && v.Fill == volume.FillCopied)
		if !x.unmadeCopy(view, c) || c.Placeholder || byMount || x.ailing[c.Group] != "" {
			continue
		}
		if !there || v.State == volume.Creating || c.Kind == volume.Snapshot {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b persistentvolume.Volume) int {
		return cmp.Or(cmp.Compare(a.PV, b.PV), cmp.Compare(a.UID, b.UID))
	})
	return out
}
