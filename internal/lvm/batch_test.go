package lvm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// LVM itself selects the volumes of a batch by UUID, state and attributes, and skips those that have changed.
func TestBatchesAreSelectedByLVM(t *testing.T) {
	lvs := []LogicalVolume{{Group: "flexlvm", Name: "a", UUID: pvc1}, {Group: "flexlvm", Name: "b", UUID: "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk"}}
	either := `(lv_uuid="` + pvc1 + `" || lv_uuid="Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk")`
	c, s := client(t, map[string][]answer{"lvchange": {{}, {err: failed}}, "lvremove": {{}, {err: failed}}, "pvs": {{out: golden(t, "devices.json")}}})
	require.NoError(t, c.Doom(t.Context(), "flexlvm", lvs))
	require.NoError(t, c.RemoveDoomed(t.Context(), "flexlvm", lvs))
	require.Equal(t, `lvchange --config backup{archive=0} --deltag flexlvm.state=unreferenced --addtag flexlvm.state=doomed --select `+either+` && lv_tags={"flexlvm"} && lv_tags={"flexlvm.state=unreferenced"} && lv_attr!~"^[oO]" -- flexlvm`, s.ran[0])
	require.Contains(t, s.ran[2], "flush ", "before anything is removed")
	require.Equal(t, `lvremove --yes --select `+either+` && lv_tags={"flexlvm"} && lv_tags={"flexlvm.state=doomed"} && lv_attr!~"^[oO]" -- flexlvm`, s.ran[len(s.ran)-1])
	require.Error(t, c.Doom(t.Context(), "flexlvm", lvs))
	require.Error(t, c.RemoveDoomed(t.Context(), "flexlvm", lvs))
}

// A volume that Left does not return counts as permanently deleted, so an incomplete report is an error.
func TestLeft(t *testing.T) {
	const group = "JX73Fe-YsI9-e5Mp-gprU-V7Xe-iTJw-crsSPE"
	there := LogicalVolume{Group: "flexlvm", GroupUUID: group, Name: "pvc-1", UUID: pvc1}
	whole := golden(t, "everything.json")
	c, s := client(t, map[string][]answer{"lvm": {{out: whole}}})
	left, err := c.Left(t.Context(), []LogicalVolume{there})
	require.NoError(t, err)
	require.Equal(t, pvc1, left[0].UUID)
	require.Contains(t, s.ran[0], `--options `+volumeFields+` --select (lv_uuid="`+pvc1+`") `, "whatever its name and tags are")

	copied := there
	copied.Group, copied.GroupUUID = "g2", "0477TD-KJIc-tW2Z-Bi8c-SYcr-1ayI-E33hKl"
	c, _ = client(t, map[string][]answer{"lvm": {{out: whole}}})
	left, err = c.Left(t.Context(), []LogicalVolume{copied})
	require.NoError(t, err)
	require.Empty(t, left, "only a copy of its group has a volume with its UUID")

	elsewhere := there
	elsewhere.GroupUUID = "another"
	for name, c := range map[string]struct {
		of     LogicalVolume
		answer answer
	}{
		"failed":                {there, answer{err: failed}},
		"not JSON":              {there, answer{out: "WARNING"}},
		"a row makes no sense":  {there, answer{out: strings.Replace(whole, `"lv_size":"146800640"`, `"lv_size":"much"`, 1)}},
		"the group is gone":     {elsewhere, answer{out: whole}},
		"the group lacks disks": {there, answer{out: golden(t, "degraded.json")}},
	} {
		client, _ := client(t, map[string][]answer{"lvm": {c.answer}})
		left, err := client.Left(t.Context(), []LogicalVolume{c.of})
		require.Error(t, err, name)
		require.Empty(t, left, name)
	}
}

// A report of several groups has both the volumes of a group and those of its copy, which have the same UUIDs.
func TestVolumesOfACopiedGroup(t *testing.T) {
	out := only(t, "pvc-1")
	rows := strings.TrimSuffix(strings.TrimPrefix(out, `{"report":[{"lv":[`), "]}]}")
	const group = "JX73Fe-YsI9-e5Mp-gprU-V7Xe-iTJw-crsSPE"
	require.Contains(t, rows, group)
	c, _ := client(t, map[string][]answer{"lvs": {{out: strings.Replace(out, "]}]}", ","+strings.ReplaceAll(rows, group, "copy")+"]}]}", 1)}}})
	all, err := c.Volumes(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "copy", all[1].GroupUUID)
}
