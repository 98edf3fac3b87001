package eviction

import (
	"slices"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unfinishedClone reports whether c is an unfinished copy: its volume is missing, creating, or has unreadable tags;
// or it is a snapshot that is not recorded as taken. Its source must stay until then, because an interrupted
// copy starts over. A copy that can never be created, because it is given up or of another cluster or volume
// group, does not count.
func (x *index) unfinishedClone(view View, c *persistentvolume.Volume) bool {
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

// beingCloned returns the name of the PersistentVolume that is to be a copy of c's volume; empty if there is
// none. A missing volume cannot be kept for it, and a released one can be copied in its new state.
func (x *index) beingCloned(c *persistentvolume.Volume) string {
	v, there := x.volumes[KeyOfPersistentVolume(c)]
	if !there || v.State != volume.Ready && v.State != volume.Creating {
		return ""
	}
	return x.cloneSources[KeyOfPersistentVolume(c)]
}

// LostSources returns the sources of unfinished copies that do not exist and that no PersistentVolume wants, as after a
// VolumeSnapshot was deleted. They are never created again: the provisioner copies only the volume of a PersistentVolume
// on the same node. A source that was created after the inventory was taken may be among them until the next inventory.
func LostSources(view View) []Key {
	x := newIndex(view)
	var out []Key
	for source := range x.cloneSources {
		_, there := x.volumes[source]
		_, wanted := x.wantedByName[source.name]
		if !there && !wanted && !x.unreadable[source.name] && x.groupProblems[source.group] == "" {
			out = append(out, source)
		}
	}
	return out
}

// ClonesToCreate returns the PersistentVolumes whose volumes are to be created now as copies, in order of their names.
// Encrypted copies are created by their first mount, which brings the key, except snapshots and full copies that
// are not complete yet, which need none.
func ClonesToCreate(view View) []persistentvolume.Volume {
	x := newIndex(view)
	var out []persistentvolume.Volume
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		v, there := x.volumes[KeyOfPersistentVolume(c)]
		byMount := c.Encrypted && c.Kind != volume.Snapshot && (c.Shape.Layout == volume.Thin || there && v.Fill == volume.FillCopied)
		if !x.unfinishedClone(view, c) || c.Placeholder || byMount || x.groupProblems[c.Group] != "" {
			continue
		}
		if !there || v.State == volume.Creating || c.Kind == volume.Snapshot {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, comparePV)
	return out
}
