package persistentvolume

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	return below(a.Spec.Local.Path, b.Spec.Local.Path) || below(b.Spec.Local.Path, a.Spec.Local.Path)
}

func below(at, above string) bool {
	at, above = path.Clean(at), path.Clean(above)
	return at == above || strings.HasPrefix(at, strings.TrimSuffix(above, "/")+"/")
}
