package persistentvolume

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/diskid"
)

// SharePath reports whether two local PersistentVolumes may be on the same node, judging by their
// hostnames, and have the same path or one path below the other.
func SharePath(a, b *corev1.PersistentVolume) bool {
	if a.Spec.Local == nil || b.Spec.Local == nil {
		return false
	}
	one, other := Hostnames(a), Hostnames(b)
	if len(one) > 0 && len(other) > 0 && !slices.ContainsFunc(one, func(name string) bool { return slices.Contains(other, name) }) {
		return false
	}
	onePath, otherPath := path.Clean(a.Spec.Local.Path), path.Clean(b.Spec.Local.Path)
	return diskid.Within(onePath, otherPath) || diskid.Within(otherPath, onePath)
}
