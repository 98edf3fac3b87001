package eviction

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// IsUnboundLocalVolume reports whether a PersistentVolume is of a LocalVolume, and not bound yet.
func IsUnboundLocalVolume(c *persistentvolume.Volume) bool {
	return c.Declared && !c.Placeholder && (c.Phase == corev1.VolumeAvailable || c.Phase == corev1.VolumePending)
}

// LocalVolumesToCreate returns the PersistentVolumes of LocalVolumes whose volumes are to be
// created now, because they are missing or unfinished, in order of their names. Once a
// PersistentVolume is bound, its mounts create its volume, like any other; an encrypted one is
// always created by its first mount.
func LocalVolumesToCreate(view View) []persistentvolume.Volume {
	x := newIndex(view)
	var out []persistentvolume.Volume
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		if !IsUnboundLocalVolume(c) || c.Deleting || c.Encrypted || c.Undelete || c.CloneOf != "" || c.Kind != volume.Claim || c.Cluster != view.Cluster {
			continue
		}
		group, there := x.group(c)
		if !there || x.groupProblems[c.Group] != "" || !c.InGroup(group.UUID) {
			continue
		}
		if v, there := x.volumes[KeyOfPersistentVolume(c)]; !there || v.State == volume.Creating {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, comparePV)
	return out
}
