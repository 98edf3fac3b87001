package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func localAt(path string, hostnames ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{}
	v.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	for _, name := range hostnames {
		if v.Spec.NodeAffinity == nil {
			v.Spec.NodeAffinity = NodeAffinity(name)
			continue
		}
		terms := &v.Spec.NodeAffinity.Required.NodeSelectorTerms
		*terms = append(*terms, NodeAffinity(name).Required.NodeSelectorTerms...)
	}
	return v
}

func hostPathAt(path string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{}
	v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path}
	return v
}

func TestSharePath(t *testing.T) {
	zone := localAt("/mnt/a", "host-1", "host-2")
	zone.Spec.NodeAffinity.Required.NodeSelectorTerms[1].MatchExpressions[0].Key = "zone"
	for name, c := range map[string]struct {
		other *corev1.PersistentVolume
		want  bool
	}{
		"the same":                 {localAt("/mnt/a/", "host-3"), true},
		"above":                    {localAt("/mnt", "host-3"), true},
		"below":                    {localAt("/mnt/a/b", "host-3"), true},
		"beside":                   {localAt("/mnt/ab", "host-3"), false},
		"of another node":          {localAt("/mnt/a", "host-1"), false},
		"of two nodes":             {localAt("/mnt/a", "host-1", "host-3"), true},
		"of a node or a zone":      {zone, true},
		"of any node":              {localAt("/mnt/a"), true},
		"a hostPath":               {hostPathAt("/mnt/a"), true},
		"a hostPath beside":        {hostPathAt("/mnt/b"), false},
		"a volume of another kind": {&corev1.PersistentVolume{}, false},
	} {
		v := localAt("/mnt/a", "host-3")
		require.Equal(t, c.want, SharePath(v, c.other), name)
		require.Equal(t, c.want, SharePath(c.other, v), name)
	}
	require.True(t, MayBeOn(localAt("/mnt/a", "host-1"), ""))
	require.True(t, MayBeOn(localAt("/mnt/a", "host-1"), "host-1"))
	require.False(t, MayBeOn(localAt("/mnt/a", "host-1"), "host-2"))
	require.True(t, MayBeOn(hostPathAt("/mnt/a"), "host-2"))
}
