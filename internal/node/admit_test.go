package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The remedy for the tags of a newer release is to update the node, not to repair the tags.
func TestTagsOfANewerRelease(t *testing.T) {
	const fs, later = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", "flexlvm.later=1"
	tags := volume.Tags{State: volume.Ready, FS: fs, Size: volume.GiB, Namespace: "db", Kind: volume.Claim}
	pool := volume.DirectoryPool{State: volume.Ready, FS: fs, Size: volume.GiB}
	broken, brokenPool := tags, pool
	broken.FS, brokenPool.FS = "odd", "odd"
	linear, directory := volume.Shape{Layout: volume.Linear}, volume.Shape{Layout: volume.Directory, DirectoryPool: "dirs"}
	for name, tt := range map[string]struct {
		newer, malformed []string
		shape            volume.Shape
		read             func(lvm.LogicalVolume) error
		remedy           string
	}{
		"volume":         {append(tags.Strings(), later), broken.Strings(), linear, readOurs, "; a person must correct them with lvchange"},
		"directory":      {append(tags.Strings(), later), broken.Strings(), directory, readOurs, "; a person must correct its record (volumes/"},
		"directory pool": {append(pool.Strings(), later), brokenPool.Strings(), linear, readPool, "; a person must correct them with lvchange"},
	} {
		lv := lvm.LogicalVolume{Group: "flexlvm", Name: "pvc-1", Tags: tt.newer, Shape: tt.shape}
		err := tt.read(lv)
		require.ErrorIs(t, err, ErrRefused, name)
		require.ErrorContains(t, err, "flexlvm.later", name)
		require.ErrorContains(t, err, "change nothing, and upgrade", name)
		require.NotContains(t, err.Error(), "right", name)
		lv.Tags = tt.malformed
		require.ErrorContains(t, tt.read(lv), tt.remedy, name)
	}
	e := &Engine{}
	listed := e.describe(lvm.LogicalVolume{Group: "flexlvm", Name: "pvc-1", Tags: append(tags.Strings(), later), Shape: linear})
	require.True(t, listed.Unknown)
	require.False(t, e.describe(lvm.LogicalVolume{Group: "flexlvm", Name: "pvc-1", Tags: broken.Strings(), Shape: linear}).Unknown)
}

// The tags of a pool are those of no volume, and nobody is asked to change them: not by a command that names the pool as
// a volume, such as adopt, nor by a mount.
func TestAPoolIsNoVolume(t *testing.T) {
	directories := volume.DirectoryPool{State: volume.Ready, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Size: volume.GiB}.Strings()
	for what, lv := range map[string]lvm.LogicalVolume{
		"directory pool": {Tags: directories, Shape: volume.Shape{Layout: volume.Linear}},
		"thin pool":      {Tags: volume.PoolTags(), Pool: true},
	} {
		lv.Group, lv.Name = "flexlvm", "pool"
		_, adopting := unfinishedAdoption(lv, Adoption{Group: lv.Group, Name: lv.Name})
		for _, err := range []error{readOurs(lv), adopting} {
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, "logical volume flexlvm/pool is a "+what+" of flexlvm's and not a volume")
			require.NotContains(t, err.Error(), "lvchange")
		}
	}
	notAPool := lvm.LogicalVolume{Group: "flexlvm", Name: "data", Tags: volume.PoolTags(), Shape: volume.Shape{Layout: volume.Linear}}
	require.ErrorContains(t, readOurs(notAPool), "a person must correct them with lvchange")
}

func readOurs(lv lvm.LogicalVolume) error {
	_, err := ownedTags(lv)
	return err
}

func readPool(lv lvm.LogicalVolume) error {
	_, err := poolTags(lv)
	return err
}
