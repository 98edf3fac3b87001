package dataset

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

func (s *Source) readNFS(v flexlvmv1.VolumeConfig, options map[string]string) error {
	s.NFS = &corev1.NFSVolumeSource{Server: options["server"], Path: options["path"], ReadOnly: v.AccessMode == corev1.ReadOnlyMany}
	if s.NFS.Server == "" || !path.IsAbs(s.NFS.Path) {
		return fmt.Errorf("server %q and path %q: both have to be set in options, and path has to begin with /", s.NFS.Server, s.NFS.Path)
	}
	return nil
}
