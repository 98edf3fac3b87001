package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// What was adopted may be much larger than its size tells, and nobody has charged that to a copy.
func TestFullCopyTakesNoMoreThanItIsCharged(t *testing.T) {
	c := fullCopy{spec: volume.Spec{Name: "copy", CloneOf: "snap", Size: 100 * volume.GiB, Layout: volume.Linear}}
	origin := lvm.LogicalVolume{Extent: volume.DefaultExtent, Shape: volume.Shape{Layout: volume.Striped, Stripes: 4}}
	c.size = c.spec.DeviceSize()
	require.NoError(t, mayTakeInFull(&c, origin))
	c.size = origin.Shape.Extents(c.size+1, origin.Extent)
	require.NoError(t, mayTakeInFull(&c, origin), "as LVM rounds up")
	c.size = volume.TiB
	err := mayTakeInFull(&c, origin)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, `cloneOf "snap": a copy of it takes 1099511627776 bytes and its claim is charged for`)
	c.of.Fixed = true
	require.NoError(t, mayTakeInFull(&c, origin), "it cannot ask for more")
	c.of.Fixed = false
	c.spec.Size = c.spec.HeldBy(volume.TiB) + volume.Block
	require.NoError(t, mayTakeInFull(&c, origin))
}
