package nfs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLocate checks that locate accepts nothing but the one directory in the export that belongs to the
// PersistentVolume.
func FuzzLocate(f *testing.F) {
	f.Add("nfs", "/srv/team-data-"+pvName, pvName)
	f.Add("nfs", "/srv/../etc/x-"+pvName, pvName)
	f.Add("nfs", "/srv/.deleting-x-"+pvName, pvName)
	f.Fuzz(func(t *testing.T, server, path, name string) {
		v := volumeAt(server, path)
		v.Name = name
		at, err := Exports{{Server: "nfs", Path: "/srv", Dir: "/mnt"}}.locate(v)
		if err != nil {
			return
		}
		require.Equal(t, "/mnt", filepath.Dir(filepath.Join("/mnt", at.name)))
		require.True(t, filepath.IsLocal(at.name))
		require.False(t, strings.HasPrefix(at.name, "."))
		require.True(t, strings.HasSuffix(at.name, "-"+name) && len(name) == len(pvName))
		require.Equal(t, path, at.export.remote(at.name))
	})
}
