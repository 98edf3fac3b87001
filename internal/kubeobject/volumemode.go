package kubeobject

import corev1 "k8s.io/api/core/v1"

// IsBlock reports whether the volumeMode of a claim or a PersistentVolume is a raw block device instead of a
// file system, which is the default.
func IsBlock(mode *corev1.PersistentVolumeMode) bool {
	return mode != nil && *mode == corev1.PersistentVolumeBlock
}
