package dataset

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// allowed reports whether a share is, or is below, one of the shares in among, as SERVER:/PATH. Without any,
// all shares are allowed.
func allowed(share *corev1.NFSVolumeSource, among []string) bool {
	at := share.Server + ":" + path.Clean(share.Path)
	return len(among) == 0 || slices.ContainsFunc(among, func(a string) bool {
		a = strings.TrimRight(a, "/")
		return at == a || strings.HasPrefix(at, a+"/")
	})
}
