package persistentvolume

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/diskid"
)

// NodePath returns the path of a local or hostPath PersistentVolume on its node; empty for other kinds.
func NodePath(v *corev1.PersistentVolume) string {
	switch {
	case v.Spec.Local != nil:
		return v.Spec.Local.Path
	case v.Spec.HostPath != nil:
		return v.Spec.HostPath.Path
	}
	return ""
}

// SharePath reports whether two local or hostPath PersistentVolumes may be on the same node, judging by their hostnames,
// and have the same path or one path below the other.
func SharePath(a, b *corev1.PersistentVolume) bool {
	onePath, otherPath := NodePath(a), NodePath(b)
	if onePath == "" || otherPath == "" || !ShareNode(a, b) {
		return false
	}
	onePath, otherPath = path.Clean(onePath), path.Clean(otherPath)
	return diskid.Within(onePath, otherPath) || diskid.Within(otherPath, onePath)
}

// ShareNode reports whether two PersistentVolumes may be on the same node, judging by their hostnames.
func ShareNode(a, b *corev1.PersistentVolume) bool {
	one := requiredHostnames(a)
	return len(one) == 0 || slices.ContainsFunc(one, func(hostname string) bool { return MayBeOn(b, hostname) })
}

// MayBeOn reports whether a PersistentVolume may be on the node with this hostname; empty: it is unknown.
func MayBeOn(v *corev1.PersistentVolume, hostname string) bool {
	names := requiredHostnames(v)
	return len(names) == 0 || hostname == "" || slices.Contains(names, hostname)
}

// requiredHostnames is Hostnames, but returns none if one of the terms fits nodes of any hostname: one is enough.
func requiredHostnames(v *corev1.PersistentVolume) (out []string) {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return nil
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		names := hostnamesOf(term)
		if len(names) == 0 {
			return nil
		}
		out = append(out, names...)
	}
	return out
}
