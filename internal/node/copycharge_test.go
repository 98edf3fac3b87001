package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An adopted volume may be much larger than its size, and its copies are not charged for the difference.
func TestFullCopyTakesNoMoreThanItIsCharged(t *testing.T) {
	c := fullCopy{spec: volume.Spec{Name: "copy", CloneOf: "snap", Size: 100 * volume.GiB, Layout: volume.Linear}}
	origin := lvm.LogicalVolume{Extent: volume.DefaultExtent, Shape: volume.Shape{Layout: volume.Striped, Stripes: 4}}
	c.size = c.spec.DeviceSize()
	require.NoError(t, checkFullCopyCharge(&c, origin))
	c.size = origin.Shape.RoundUp(c.size+1, origin.Extent)
	require.NoError(t, checkFullCopyCharge(&c, origin), "as LVM rounds up")
	c.size = volume.TiB
	err := checkFullCopyCharge(&c, origin)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, `cloneOf "snap": a copy of it takes 1099511627776 bytes and its claim is charged for`)
	c.sourceTags.Fixed = true
	require.NoError(t, checkFullCopyCharge(&c, origin), "it cannot ask for more")
	c.sourceTags.Fixed = false
	c.spec.Size = c.spec.HeldBy(volume.TiB) + volume.Block
	require.NoError(t, checkFullCopyCharge(&c, origin))
}

// The room that the store of a larger source needs is promised to other volumes.
func TestStoreTakesNoMoreThanIsKeptForIt(t *testing.T) {
	spec := volume.Spec{Name: "snap", CloneOf: "source", Size: 100 * volume.GiB, Layout: volume.Linear, Kind: volume.Snapshot}
	r := SnapshotRequest{Spec: spec, Charged: spec.Charge()}
	origin := lvm.LogicalVolume{Extent: 16 * volume.MiB, Shape: volume.Shape{Layout: volume.Striped, Stripes: 4}}
	origin.Size = origin.Shape.RoundUp(spec.ContentSize(), origin.Extent)
	require.NoError(t, checkStoreCharge(r, origin), "as LVM rounds up")
	origin.Size = 200 * volume.GiB
	err := checkStoreCharge(r, origin)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, `cloneOf "source": its store takes`)
	require.ErrorContains(t, err, "has a device of 200 GiB, and")
	r.Reserve = 30
	require.NoError(t, checkStoreCharge(r, origin), "it takes less")
	r.Reserve, r.Charged = 0, 0
	require.NoError(t, checkStoreCharge(r, origin), "nobody has said what is kept")
}
