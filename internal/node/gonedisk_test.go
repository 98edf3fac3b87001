package node

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A failingContent cannot be read.
type failingContent struct {
	filesystem
	err error
}

func (c failingContent) uuid(string) (string, error) {
	return "", fmt.Errorf("read superblock: %w", c.err)
}

// The error of a device contains what to do if its disk was away, and is still an error of reading: nothing is
// formatted because of it.
func TestDeviceErrorNamesTheRemedy(t *testing.T) {
	linear := lvm.LogicalVolume{Group: "flexlvm", Name: "data", Shape: volume.Shape{Layout: volume.Linear}}
	thin, mirror := linear, linear
	thin.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "pool"}
	mirror.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
	creating := sourceTags()
	creating.State = volume.Creating
	for _, errno := range []error{unix.EIO, unix.ENXIO, unix.ENODEV} {
		for says, lv := range map[string]lvm.LogicalVolume{
			"run `lvchange --refresh flexlvm/data` once nothing has the volume mounted":        linear,
			"run `lvchange --refresh flexlvm/pool` and `lvchange --refresh flexlvm/data` once": thin,
			"read docs/disk-loss.md#the-disk-is-dead":                                          mirror,
		} {
			valid, err := checkFilesystem(lv, creating, content{filesystem: failingContent{err: errno}}, false)
			require.False(t, valid)
			require.ErrorIs(t, err, errno)
			require.ErrorContains(t, err, says)
		}
	}
	_, err := checkFilesystem(linear, creating, content{filesystem: failingContent{err: unix.EACCES}}, false)
	require.ErrorIs(t, err, unix.EACCES)
	require.NotContains(t, err.Error(), "lvchange")
	_, err = checkHeader(linear, creating, lvm.Device{Path: "/proc/self/mem"}, false) // reading address 0 is EIO
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorContains(t, err, "lvchange --refresh")
}

// The inventory reports a volume that is mapped to a disk that is gone.
func TestInventoryOfAGoneDisk(t *testing.T) {
	gone := func() (string, error) { return "sdb", nil }
	for name, c := range map[string]struct {
		change func(*inventory.Volume, *lvm.LogicalVolume)
		disk   func() (string, error)
		says   string
	}{
		"gone":           {disk: gone, says: "it is mapped to the disk sdb, which is gone, so reading and writing fail; if the disk is back under another name, run `lvchange --refresh flexlvm/data` once nothing has the volume mounted"},
		"there":          {disk: func() (string, error) { return "", nil }},
		"unknown":        {disk: func() (string, error) { return "sdb", errors.New("no sysfs") }},
		"LVM reports it": {disk: gone, change: func(v *inventory.Volume, _ *lvm.LogicalVolume) { v.Problem = "partial" }, says: "partial"},
		"given up":       {disk: gone, change: func(v *inventory.Volume, _ *lvm.LogicalVolume) { v.State = volume.Unreferenced }},
		"inactive":       {disk: gone, change: func(_ *inventory.Volume, lv *lvm.LogicalVolume) { lv.Active = false }},
		"a mirror":       {disk: gone, change: func(_ *inventory.Volume, lv *lvm.LogicalVolume) { lv.Shape.Layout = volume.Raid1 }},
		"a snapshot":     {disk: gone, change: func(_ *inventory.Volume, lv *lvm.LogicalVolume) { lv.Origin = "source" }},
	} {
		v := inventory.Volume{State: volume.Ready}
		lv := lvm.LogicalVolume{Group: "flexlvm", Name: "data", Active: true, Shape: volume.Shape{Layout: volume.Linear}}
		if c.change != nil {
			c.change(&v, &lv)
		}
		explainGoneDisk(&v, lv, c.disk)
		if c.says == "" {
			require.Empty(t, v.Problem, name)
		} else {
			require.Contains(t, v.Problem, c.says, name)
		}
	}
}

// A directory pool that cannot be read has the remedy as well.
func TestDeviceErrorOfADirectoryPool(t *testing.T) {
	e, g, _ := batchOfTwo(t, func(*fakeGroup) {})
	tags := volume.DirectoryPool{State: volume.Ready, FS: sourceTags().FS, Size: 64 * volume.MiB}
	pool := lvm.LogicalVolume{Group: "flexlvm", Name: "dirs", UUID: "uuid-dirs", Tags: tags.Strings(), Shape: volume.Shape{Layout: volume.Linear}}
	g.report = fmt.Errorf("read superblock: %w", unix.EIO)
	require.Contains(t, e.observePool(t.Context(), pool).pool.Directories.Unfit, "run `lvchange --refresh flexlvm/dirs` once nothing has the volume mounted")
}
