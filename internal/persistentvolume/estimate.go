package persistentvolume

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Estimate returns what can be read of a PersistentVolume that Parse rejects, such as one of a later
// release: its charge, its pool and whether it is being removed. It reports false if even the pool cannot be read.
func Estimate(object *corev1.PersistentVolume) (v Volume, known bool) {
	spec, unread := volume.ReadOptions(Options(object))
	capacity := object.Spec.Capacity[corev1.ResourceStorage]
	spec.Size = min(max(spec.Size, volume.Bytes(capacity.Value()), 0), volume.MaxSize)
	v = Volume{
		PV: object.Name, Group: spec.Group, GroupUUID: spec.GroupUUID, Kind: spec.Kind, Size: spec.Size, Inodes: spec.Inodes,
		Shape: spec.Shape(), FSType: spec.FSType, Encrypted: spec.Encrypted, CloneOf: spec.CloneOf, Reserve: spec.Reserve,
		Replica: replicaOf(object, spec),
	}
	if phase, err := phaseOf(object); err == nil { // in an unknown phase, it does not count as being removed
		v.Phase, v.Deleting = phase, object.DeletionTimestamp != nil
	}
	v.ReclaimPolicy, _ = policyOf(object)
	if _, name, err := named(object); err == nil {
		v.Volume = name
	}
	if ratio, err := volume.ParseRatio(pv.AnnotationRatio, object.Annotations[pv.AnnotationRatio]); err == nil {
		spec.Ratio = ratio
	}
	v.Shape = spec.Shape()
	noted, _ := parseCharged(object.Annotations[pv.AnnotationCharged])
	v.Charged = max(noted, spec.Charge())
	for _, option := range []string{volume.OptionGroup, volume.OptionLayout, volume.OptionThinPool, volume.OptionDirectoryPool} {
		if slices.Contains(unread, option) {
			return v, false
		}
	}
	thin, directory := spec.ThinPool != "", spec.DirectoryPool != ""
	return v, spec.Group != "" && thin == (spec.Layout == volume.Thin) && directory == (spec.Layout == volume.Directory)
}

// TakesNone reports whether a PersistentVolume is for the readers of a dataset, and so has no logical
// volume of its own.
func TakesNone(object *corev1.PersistentVolume) bool {
	spec, _ := volume.ReadOptions(Options(object))
	return spec.ReadOnly
}
