package nodeagent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// A foreignVolume is a local or hostPath PersistentVolume of another program. Nothing in it says which disk it has, so its
// path is resolved: it may lead to a discovered disk through other links, or be a device that is found by a link.
type foreignVolume struct{ name, path string }

// foreignOf returns a PersistentVolume as a foreignVolume; false if it has no path, or is a discovered one.
func foreignOf(v *corev1.PersistentVolume) (foreignVolume, bool) {
	at := persistentvolume.NodePath(v)
	return foreignVolume{v.Name, at}, at != "" && v.Labels[flexlvmv1.LabelDiscoveredOn] == ""
}

// resolve returns where the paths of PersistentVolumes lead on this machine.
func (s *discoverer) resolve(ctx context.Context, foreign []foreignVolume) []discovery.Place {
	var paths []string
	for _, v := range foreign {
		paths = append(paths, v.path)
	}
	return s.disks.Resolve(ctx, paths)
}

// checkPlaces fails if one of the PersistentVolumes, which lead to these places, has the found disk, a part of it, or what
// it is a part of, or if that cannot be determined.
func checkPlaces(found *discovery.Found, foreign []foreignVolume, places []discovery.Place) error {
	for i, v := range foreign {
		switch same, err := found.IsAt(&places[i]); {
		case err != nil:
			return fmt.Errorf("cannot determine whether PersistentVolume %s (%s), which another program has created, has this disk: %w", v.name, v.path, err)
		case same:
			return fmt.Errorf("PersistentVolume %s (%s), which another program has created, has this disk, a part of it, or what it is a part of; once that is released, clean the disk and delete it", v.name, v.path)
		}
	}
	return nil
}

// checkForeign is checkPlaces for the PersistentVolumes of the last list.
func (s *discoverer) checkForeign(ctx context.Context, found *discovery.Found) error {
	h := &s.holders
	if h.places == nil {
		h.places = s.resolve(ctx, h.foreign)
	}
	return checkPlaces(found, h.foreign, h.places)
}
