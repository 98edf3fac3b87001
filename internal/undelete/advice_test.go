package undelete_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestConsequence(t *testing.T) {
	evicted := "it is evicted when its room is needed"
	for name, tt := range map[string]struct {
		to     volume.State
		change func(*inventory.Volume)
		says   string
	}{
		"retained":                {volume.Retained, func(v *inventory.Volume) { v.Reclaim = volume.ReclaimImmediate }, "it stays until somebody undeletes or forgets it"},
		"immediate":               {volume.Unreferenced, func(v *inventory.Volume) { v.Reclaim = volume.ReclaimImmediate }, "its class says reclaim: immediate, so the node daemon removes it in its next round"},
		"lazy":                    {volume.Unreferenced, func(*inventory.Volume) {}, evicted + "; until then `flexlvm volumes undelete pvc-3` restores it"},
		"encrypted":               {volume.Unreferenced, func(v *inventory.Volume) { v.Encrypted = true }, evicted + "; until then `flexlvm volumes undelete pvc-3 --door csi --secret NAMESPACE/NAME` restores it"},
		"raw":                     {volume.Unreferenced, func(v *inventory.Volume) { v.FSType = volume.Raw }, evicted + "; until then `flexlvm volumes undelete pvc-3 --door csi` restores it"},
		"creating before":         {volume.Unreferenced, func(v *inventory.Volume) { v.State = volume.Creating }, evicted + "; until then `flexlvm volumes undelete pvc-3` restores it"},
		"replica, not restorable": {volume.Unreferenced, func(v *inventory.Volume) { v.Kind = volume.Dataset }, evicted},
		"snapshot":                {volume.Unreferenced, func(v *inventory.Volume) { v.Kind = volume.Snapshot }, evicted},
		"unfinished copy":         {volume.Unreferenced, func(v *inventory.Volume) { v.CloneOfFS = "x" }, evicted},
	} {
		t.Run(name, func(t *testing.T) {
			v := released()
			tt.change(&v)
			require.Equal(t, tt.says, undelete.Consequence(tt.to, v))
		})
	}
}

// A replica can be made ready while its PersistentVolume is there, but cannot be restored with a claim.
func TestCheckComplete(t *testing.T) {
	v := released()
	v.Kind = volume.Dataset
	require.NoError(t, undelete.CheckComplete(v))
	v.CloneOfFS = "x"
	require.ErrorContains(t, undelete.CheckComplete(v), "unfinished copy")
}
