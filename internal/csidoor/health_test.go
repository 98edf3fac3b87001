package csidoor

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestStats(t *testing.T) {
	d := open(t)
	d.engine.space = node.Space{Size: 100, Used: 30, Free: 70, Inodes: 9, InodesUsed: 2, InodesFree: 7}
	got, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "flexlvm/pvc-1", VolumePath: "/pods/1/mount"})
	require.NoError(t, err)
	bytes, inodes := got.GetUsage()[0], got.GetUsage()[1]
	require.Equal(t, csi.VolumeUsage_BYTES, bytes.GetUnit())
	require.Equal(t, []int64{100, 30, 70}, []int64{bytes.GetTotal(), bytes.GetUsed(), bytes.GetAvailable()})
	require.Equal(t, csi.VolumeUsage_INODES, inodes.GetUnit())
	require.Equal(t, []int64{9, 2, 7}, []int64{inodes.GetTotal(), inodes.GetUsed(), inodes.GetAvailable()})

	d.engine.do = func(context.Context) error { return node.ErrNotMounted }
	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "flexlvm/pvc-1", VolumePath: "/elsewhere"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestHealth(t *testing.T) {
	d := open(t)
	thin := volume.Shape{Layout: volume.Thin, ThinPool: "pool"}
	d.engine.inventory = inventory.Inventory{
		Pools: []inventory.Pool{
			{Name: volume.PoolOf("flexlvm", ""), Missing: 1},
			{Name: volume.PoolOf("flexlvm", "pool"), Size: 100 * volume.GiB, Free: volume.GiB, Thin: &inventory.ThinPool{Known: true}},
			{Name: volume.PoolOf("spare", ""), Missing: 2},
		},
		Volumes: []inventory.Volume{
			{Group: "flexlvm", Name: "whole"},
			{Group: "flexlvm", Name: "degraded", Degraded: true, Problem: "one copy is missing"},
			{Group: "flexlvm", Name: "broken", Problem: "LVM says partial"},
			{Group: "flexlvm", Name: "copied", Copied: true, Problem: "two groups have it"},
			{Group: "flexlvm", Name: "thin", Shape: thin},
		},
	}
	type entry struct {
		status csi.VolumeHealthErrorType
		reason string
	}
	for name, want := range map[string]*entry{
		"whole":    nil,
		"degraded": {csi.VolumeHealthErrorType_DEGRADED, "CopiesMissing"},
		"broken":   {csi.VolumeHealthErrorType_INACCESSIBLE, "NeedsAttention"},
		"copied":   {csi.VolumeHealthErrorType_DEGRADED, "GroupCopied"},
		"thin":     {csi.VolumeHealthErrorType_DEGRADED, "PoolFull"},
	} {
		got, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "flexlvm/" + name})
		require.NoError(t, err)
		require.Equal(t, "flexlvm/"+name, got.GetVolumeHealth().GetVolumeId())
		entries := got.GetVolumeHealth().GetHealthStatuses()
		if want == nil {
			require.Empty(t, entries)
			continue
		}
		require.Len(t, entries, 1, name)
		require.Equal(t, *want, entry{entries[0].GetStatus(), entries[0].GetReason()})
		require.NotEmpty(t, entries[0].GetMessage())
	}
	_, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "flexlvm/none"})
	require.Equal(t, codes.NotFound, status.Code(err))

	storage, err := d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	require.NoError(t, err)
	require.Len(t, storage.GetBackendHealth(), 2, "a group without flexlvm's volumes is not reported")
	require.Equal(t, "DeviceMissing", storage.GetBackendHealth()[0].GetReason())
	require.Contains(t, storage.GetBackendHealth()[0].GetMessage(), "lacks 1 device that")
	require.Equal(t, "PoolFull", storage.GetBackendHealth()[1].GetReason())
	exported := poolsHealth([]inventory.Pool{{Name: volume.PoolOf("flexlvm", ""), Exported: true}})
	require.Equal(t, "PoolUnfit", exported[0].GetReason())
	require.Contains(t, exported[0].GetMessage(), "`vgimport flexlvm`")

	// A volume may be in a directory pool that cannot be inspected, so it is not reported as missing.
	d.engine.inventory.Pools = append(d.engine.inventory.Pools, inventory.Pool{
		Name: volume.DirectoryPoolOf("flexlvm", "small"), Directories: &inventory.DirectoryPool{Unfit: "it is damaged"},
	})
	_, err = d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "flexlvm/none"})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "it is damaged")
	d.ahead.Add(int64(inventoryLife + 1))
	storage, err = d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	require.NoError(t, err)
	require.Equal(t, "PoolUnfit", storage.GetBackendHealth()[2].GetReason())

	d.engine.do = func(context.Context) error { return errors.New("LVM is away") }
	d.ahead.Add(int64(inventoryLife + 1))
	_, err = d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	require.Equal(t, codes.Internal, status.Code(err), "what is not known is not well")
}
