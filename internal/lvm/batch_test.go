package lvm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// LVM itself looks once more whether a volume of a batch is what it was.
func TestBatchesAreSelectedByLVM(t *testing.T) {
	lvs := []LogicalVolume{{Group: "flexlvm", Name: "a", UUID: pvc1}, {Group: "flexlvm", Name: "b", UUID: "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk"}}
	either := `(lv_uuid="` + pvc1 + `" || lv_uuid="Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk")`
	c, s := client(t, map[string][]answer{"lvchange": {{}, {err: failed}}, "lvremove": {{}, {err: failed}}, "pvs": {{out: golden(t, "devices.json")}}})
	require.NoError(t, c.Doom(t.Context(), "flexlvm", lvs))
	require.NoError(t, c.RemoveDoomed(t.Context(), "flexlvm", lvs))
	require.Equal(t, `lvchange --deltag flexlvm.state=unreferenced --addtag flexlvm.state=doomed --select `+either+` && lv_tags={"flexlvm"} && lv_tags={"flexlvm.state=unreferenced"} -- flexlvm`, s.ran[0])
	require.Contains(t, s.ran[2], "flush ", "before anything is removed")
	require.Equal(t, `lvremove --yes --select `+either+` && lv_tags={"flexlvm"} && lv_tags={"flexlvm.state=doomed"} -- flexlvm`, s.ran[len(s.ran)-1])
	require.Error(t, c.Doom(t.Context(), "flexlvm", lvs))
	require.Error(t, c.RemoveDoomed(t.Context(), "flexlvm", lvs))
}
