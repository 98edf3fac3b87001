package dataset

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// host matches a host name. kubelet passes SERVER:PATH to mount unchanged: a server that begins with a hyphen
// would be an option, by which a tenant could mount any directory of the node.
var host = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]*$`)

func isHost(server string) bool {
	if host.MatchString(server) {
		return true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"))
	return err == nil && address.Is6() && address.Zone() == ""
}

// isPlain reports whether a path is absolute and has no ".." and no control characters. After a symbolic link,
// ".." leads elsewhere than path.Clean assumes.
func isPlain(at string) bool {
	return path.IsAbs(at) && !slices.Contains(strings.Split(at, "/"), "..") && !strings.ContainsFunc(at, unicode.IsControl)
}

func (s *Source) readNFS(v flexlvmv1.VolumeConfig, options map[string]string) error {
	s.NFS = &corev1.NFSVolumeSource{Server: options["server"], Path: options["path"], ReadOnly: v.AccessMode == corev1.ReadOnlyMany}
	switch {
	case s.NFS.Server == "" || !path.IsAbs(s.NFS.Path):
		return fmt.Errorf("server %q and path %q: both have to be set in options, and path has to begin with /", s.NFS.Server, s.NFS.Path)
	case !isHost(s.NFS.Server):
		return fmt.Errorf("server %q is neither the name nor the address of a host; give it as nas.example.org, 10.0.0.1 or fd00::1", s.NFS.Server)
	case !isPlain(s.NFS.Path):
		return fmt.Errorf("path %q: leave out .. and what cannot be printed", s.NFS.Path)
	}
	return nil
}
