package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// No message asks a person to change tags that a newer release has written.
func TestTagsOfANewerRelease(t *testing.T) {
	linear, directory := volume.Shape{Layout: volume.Linear}, volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
	for shape, remedy := range map[volume.Shape]string{linear: "correct them with lvchange$", directory: "correct it$"} {
		for _, unknown := range []bool{true, false} {
			s := evictiontest.New()
			s.Pool("flexlvm:small", 10)
			s.PoolNamed("flexlvm:small").Directories = &inventory.DirectoryPool{GroupUUID: evictiontest.GroupUUID, Known: true}
			s.Volume("pvc", "", 1, func(v *inventory.Volume) { v.Shape, v.Problem, v.Unknown = shape, "odd", unknown })
			_, err := eviction.AdmitRequest(s.View, eviction.Request{Time: s.View.Now, Group: "flexlvm", Name: "pvc", To: volume.Retained})
			require.Error(t, err)
			s.PersistentVolume("pvc", 1, evictiontest.Phase(corev1.VolumeReleased), func(c *persistentvolume.Volume) { c.Shape = shape })
			verdicts := eviction.Judge(s.View)
			require.Len(t, verdicts, 1)
			for _, says := range []string{err.Error(), verdicts[0].Why} {
				require.Contains(t, says, "(odd); ")
				if unknown {
					require.Contains(t, says, "change nothing, and upgrade")
					require.NotRegexp(t, "lvchange|finalizer|right", says)
				} else {
					require.Regexp(t, remedy, says)
				}
			}
		}
	}
}
