package persistentvolume

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// NFSDirectory returns the server and the directory of a PersistentVolume of any driver; empty if it is not known to be
// on an NFS server. Of CSI drivers, it knows those that name server, share and subdir as csi-driver-nfs does.
func NFSDirectory(v *corev1.PersistentVolume) (server, dir string) {
	switch source := v.Spec.PersistentVolumeSource; {
	case source.NFS != nil:
		return source.NFS.Server, source.NFS.Path
	case source.CSI != nil:
		var below string
		for key, value := range source.CSI.VolumeAttributes {
			switch strings.ToLower(key) {
			case "server":
				server = value
			case "share":
				dir = value
			case "subdir":
				below = value
			}
		}
		if dir != "" {
			dir = path.Join(dir, below)
		}
	}
	return server, dir
}
