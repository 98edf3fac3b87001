package lvm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestCopies(t *testing.T) {
	segtype := "linear"
	row := func(group, name, uuid, parent, health string) string {
		return `{"vg_name":"` + group + `","lv_name":"` + name + `","lv_uuid":"` + uuid + `","lv_parent":"` + parent + `","lv_health_status":"` + health + `","segtype":"` + segtype + `"}`
	}
	report := func(rows ...string) answer {
		return answer{out: `{"report":[{"lv":[` + strings.Join(rows, ",") + `]}]}`}
	}
	unknown := report(row("flexlvm", "[a_rimage_0]", "i0", "a", "repair needed"), row("flexlvm", "[a_rimage_1]", "i1", "a", "writemostly"))
	good := report(
		row("flexlvm", "[a_rmeta_0]", "m0", "a", ""), row("flexlvm", "[a_rimage_0]", "i0", "a", ""),
		row("flexlvm", "[a_rimage_1]", "i1", "a", "refresh needed"), row("flexlvm", "[a_rmeta_1]", "m1", "a", "refresh needed"),
		row("flexlvm", "a_rimage_1_extracted", "x", "", ""),
		row("tank", "[a_rimage_0]", "t0", "a", ""), row("tank", "[a_rmeta_0]", "t1", "a", "partial"),
	)
	segtype = "error"
	removed := report(row("flexlvm", "[a_rimage_0]", "i0", "a", ""))
	c, s := client(t, map[string][]answer{"lvs": {good, good, unknown, removed, {err: failed}, {out: `{"report":[{"lv":[{"vg_name":"flexlvm"}]}]}`}}})
	all, err := c.Copies(t.Context(), "")
	require.NoError(t, err)
	lv := LogicalVolume{Group: "flexlvm", Name: "a", Shape: volume.Shape{Layout: volume.Raid1, Mirrors: 1}}
	copies, err := all.Of(lv)
	require.NoError(t, err)
	require.Equal(t, []Copy{{Name: "a_rimage_0", UUID: "i0"}, {Name: "a_rimage_1", UUID: "i1", Failed: true}}, copies)
	lv.Group = "tank"
	_, err = all.Of(lv)
	require.ErrorContains(t, err, "tank/a: LVM shows 1 of 2", "an incomplete report is none")
	require.Equal(t, []Copy{{Name: "a_rimage_0", UUID: "t0", Missing: true}}, all["tank/a"], "without its metadata it is of no use")
	lv.Name = "none"
	_, err = all.Of(lv)
	require.ErrorContains(t, err, "LVM shows 0 of 2")

	_, err = c.Copies(t.Context(), "flexlvm")
	require.NoError(t, err)
	const list = "lvs --reportformat json --units b --nosuffix --config " + reportConfig + ` --options vg_name,lv_name,lv_uuid,lv_parent,lv_health_status,segtype --all --select lv_name=~"_rimage_" || lv_name=~"_rmeta_"`
	require.Equal(t, []string{list, list + " -- flexlvm"}, s.ran)
	all, err = c.Copies(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []Copy{{Name: "a_rimage_0", UUID: "i0", Failed: true}, {Name: "a_rimage_1", UUID: "i1"}}, all["flexlvm/a"], "a health of a newer release")
	all, err = c.Copies(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []Copy{{Name: "a_rimage_0", UUID: "i0", Missing: true, Removed: true}}, all["flexlvm/a"], "its device was removed from the group")
	for range 2 {
		_, err = c.Copies(t.Context(), "")
		require.Error(t, err)
	}
}

func TestActivationModes(t *testing.T) {
	c, s := client(t, map[string][]answer{"lvchange": {{}, {}, {err: failed}}})
	lv := LogicalVolume{Group: "flexlvm", Name: "a"}
	require.NoError(t, c.Activate(t.Context(), lv))
	require.NoError(t, c.ActivateComplete(t.Context(), lv))
	require.ErrorIs(t, c.ActivateComplete(t.Context(), lv), failed)
	require.Equal(t, []string{"lvchange --yes --activate y -- flexlvm/a", "lvchange --yes --activationmode complete --activate y -- flexlvm/a"}, s.ran[:2])
}
