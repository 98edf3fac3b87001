package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The size of a thin pool does not count for its group.
func TestAddThinPools(t *testing.T) {
	const gib, mib = volume.GiB, volume.MiB
	groups := []inventory.Pool{
		{Name: "a", UUID: "A", Size: 100 * gib, Free: 4 * gib, LVs: 9},
		{Name: "b", UUID: "B", Size: 10 * gib, Free: 10 * gib},
	}
	got := addThinPools(groups, []lvm.ThinPool{
		{Group: "a", GroupUUID: "A", Name: "one", UUID: "1", Size: 50 * gib, Used: 20 * gib, Metadata: 128 * mib, MetadataUsed: 64 * mib, Volumes: 3, Active: true, ErrorWhenFull: true, Zero: true, Others: lvm.Others{Data: 3 * gib, Unreported: 2 * gib}},
		{Group: "a", GroupUUID: "A", Name: "two", UUID: "2", Size: 20 * gib, Metadata: gib, Volumes: 1},
	})
	require.Len(t, got, 4)
	require.Equal(t, 100*gib-50*gib-128*mib-20*gib-gib-gib, got[0].Size, "and the larger metadata once more, in reserve")
	require.Equal(t, 9-2-4, got[0].LVs)
	require.Equal(t, 10*gib, got[1].Size)
	require.Equal(t, inventory.Pool{
		Name: "a/one", UUID: "1", Size: 50 * gib, Free: 30 * gib, LVs: 3,
		Thin: &inventory.ThinPool{GroupUUID: "A", Known: true, Metadata: 128 * mib, MetadataUsed: 64 * mib, Others: 3 * gib, Unreported: 2 * gib},
	}, got[2])
	require.Contains(t, got[3].Thin.Unfit, "is not active")
	require.False(t, got[3].Thin.Known)

	alone := addThinPools([]inventory.Pool{{Name: "a", UUID: "A", Size: gib}}, []lvm.ThinPool{{GroupUUID: "A", Size: gib}})
	require.Zero(t, alone[0].Size, "never less than nothing")
}
