package lvm

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestThinPlan(t *testing.T) {
	const mib, gib, tib = volume.MiB, volume.GiB, volume.TiB
	for name, c := range map[string]struct {
		size, free, extent volume.Bytes
		want               thinPlan
	}{
		"all of a small group":    {0, 4 * gib, 4 * mib, thinPlan{4*gib - 128*mib, 64 * mib, 64 * volume.KiB}},
		"all, odd bytes":          {0, 4*gib + 1, 4 * mib, thinPlan{4*gib - 128*mib, 64 * mib, 64 * volume.KiB}},
		"all of a disk":           {0, tib, 4 * mib, thinPlan{tib - 2*gib, gib, 64 * volume.KiB}},
		"all of several":          {0, 16 * tib, 4 * mib, thinPlan{16*tib - 2*gib, gib, mib}},
		"some":                    {gib, 4 * gib, 4 * mib, thinPlan{gib, 64 * mib, 64 * volume.KiB}},
		"some, in large extents":  {gib + 1, 4 * gib, 128 * mib, thinPlan{gib + 128*mib, 128 * mib, 64 * volume.KiB}},
		"some, metadata included": {4*gib - 128*mib, 4 * gib, 4 * mib, thinPlan{4*gib - 128*mib, 64 * mib, 64 * volume.KiB}},
	} {
		got, err := NewThinPool{Group: "g", Name: "p", Size: c.size}.plan(c.free, c.extent)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		require.LessOrEqual(t, got.size+2*got.metadata, c.free, name)
		require.LessOrEqual(t, got.size/got.chunk*thinMapping, got.metadata, "%s: room to map every chunk", name)
	}
	for name, n := range map[string]struct{ size, free volume.Bytes }{
		"nothing left":       {0, 0},
		"nothing but itself": {0, 600 * mib},
		"more than there is": {4 * gib, 4 * gib},
	} {
		_, err := NewThinPool{Group: "g", Name: "p", Size: n.size}.plan(n.free, 4*mib)
		require.ErrorIs(t, err, ErrNoSpace, name)
	}
}

func TestCreateThinPool(t *testing.T) {
	pool := reportOf(t, "thinpool")
	c, s := client(t, map[string][]answer{
		"vgs":      {{out: golden(t, "groups.json")}, {out: golden(t, "groups.json")}},
		"lvs":      {{out: golden(t, "no-volumes.json")}, {out: pool}},
		"lvcreate": {{}},
		"pvs":      {{out: golden(t, "devices.json")}},
	})
	p, err := c.CreateThinPool(t.Context(), NewThinPool{Group: "flexlvm", Name: "thinpool", Size: 2 * volume.GiB})
	require.NoError(t, err)
	require.Equal(t, "flexlvm/thinpool", p.Path())
	require.Contains(t, s.ran, "lvcreate --yes --thin --size 2147483648b --poolmetadatasize 67108864b --poolmetadataspare y --chunksize 65536b "+
		"--zero y --errorwhenfull y --discards passdown --addtag flexlvm --addtag flexlvm.kind=pool --thinpool thinpool -- flexlvm")
	require.True(t, slices.ContainsFunc(s.ran, func(ran string) bool { return strings.HasPrefix(ran, "flush ") }), "%q", s.ran)

	groups, devices := []answer{{out: golden(t, "groups.json")}}, []answer{{out: golden(t, "devices.json")}}
	for name, answers := range map[string]map[string][]answer{
		"the name is taken":            {"vgs": groups, "lvs": {{out: only(t, "pvc-1")}}},
		"no room":                      {"vgs": {{out: strings.ReplaceAll(golden(t, "groups.json"), `"vg_free":"2327838720"`, `"vg_free":"0"`)}}},
		"no group":                     {"vgs": {{out: golden(t, "no-groups.json")}}},
		"LVM fails":                    {"vgs": {groups[0], groups[0]}, "lvs": {{out: golden(t, "no-volumes.json")}}, "lvcreate": {{err: failed}}},
		"the kernel lets writers wait": {"vgs": {groups[0], groups[0]}, "lvs": {{out: golden(t, "no-volumes.json")}, {out: strings.ReplaceAll(pool, `"error"`, `"queue"`)}}, "lvcreate": {{}}, "pvs": devices},
		"it may not last":              {"vgs": {groups[0], groups[0]}, "lvs": {{out: golden(t, "no-volumes.json")}}, "lvcreate": {{}}, "pvs": {{err: failed}}},
	} {
		c, _ := client(t, answers)
		_, err := c.CreateThinPool(t.Context(), NewThinPool{Group: "flexlvm", Name: "thinpool", Size: 2 * volume.GiB})
		require.Error(t, err, name)
	}
}

// reportOf returns lvs's report of one volume of thin.json: its row merged with that of its segment,
// as in a report of volumes.
func reportOf(t testing.TB, name string) string {
	t.Helper()
	var row, uuid string
	for line := range strings.Lines(golden(t, "thin.json")) {
		line = strings.TrimRight(strings.TrimSpace(line), ",")
		if strings.Contains(line, `"lv_name":"`+name+`"`) {
			row = strings.TrimSuffix(line, "}")
			_, uuid, _ = strings.Cut(line, `"lv_uuid":"`)
			uuid, _, _ = strings.Cut(uuid, `"`)
		}
		if segment, is := strings.CutPrefix(line, `{"lv_uuid":"`+uuid+`"`); is && uuid != "" {
			return `{"report":[{"lv":[` + row + segment + `]}]}`
		}
	}
	t.Fatalf("no %s in thin.json", name)
	return ""
}

func TestThinPools(t *testing.T) {
	c, _ := client(t, map[string][]answer{"lvm": {{out: golden(t, "thin.json")}}, "lvs": {{out: reportOf(t, "thinpool")}, {out: reportOf(t, "thinpool")}}})
	all, err := c.Everything(t.Context())
	require.NoError(t, err)
	want := ThinPool{
		Group: "flexlvm", GroupUUID: "fcQlVh-uvo5-yGlq-XZ0Z-f0qs-v39g-YwyVIv", Name: "thinpool", UUID: "xnUhCb-ybZu-Lce1-2UVs-nIlq-HBEk-1uG2fo",
		Extent: 4 * volume.MiB, Size: 2 * volume.GiB, Used: 104797203, Metadata: 64 * volume.MiB, MetadataUsed: 6798128,
		Chunk: 64 * volume.KiB, Volumes: 2, Active: true, ErrorWhenFull: true, Zero: true,
	}
	require.Equal(t, []ThinPool{want}, all.ThinPools)
	require.Len(t, all.Volumes, 2, "the pool is no volume")
	written, inactive := all.Volumes[0], all.Volumes[1]
	require.Equal(t, volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}, written.Shape)
	require.Equal(t, 300*volume.MiB, written.Size)
	require.Equal(t, volume.Bytes(104847115), written.Takes(), "what is written, rounded up")
	require.Equal(t, inactive.Size, inactive.Takes(), "nobody knows, so all of it")
	require.False(t, written.HasSnapshots)

	one, err := c.ThinPool(t.Context(), "flexlvm", "thinpool")
	require.NoError(t, err)
	require.Equal(t, want, one)
	listed, err := c.ThinPools(t.Context())
	require.NoError(t, err)
	require.Equal(t, all.ThinPools, listed)
}

// Volumes that others have created in a pool of flexlvm count as used there, and are not flexlvm's volumes.
func TestOthersInThinPools(t *testing.T) {
	const tags = `"lv_tags":"flexlvm,flexlvm.state=ready"`
	for name, tt := range map[string]struct {
		report string
		ours   int
		want   Others
	}{
		"none":            {golden(t, "thin.json"), 2, Others{}},
		"one":             {strings.Replace(golden(t, "thin.json"), tags, `"lv_tags":"mine"`, 1), 1, Others{Data: 104847115}},
		"inactive":        {strings.ReplaceAll(golden(t, "thin.json"), tags, `"lv_tags":""`), 0, Others{Data: 104847115, Unreported: 300 * volume.MiB}},
		"of another pool": {strings.NewReplacer(tags, `"lv_tags":""`, `"pool_lv":"thinpool"`, `"pool_lv":"another"`).Replace(golden(t, "thin.json")), 0, Others{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := client(t, map[string][]answer{"lvm": {{out: tt.report}}})
			all, err := c.Everything(t.Context())
			require.NoError(t, err)
			require.Len(t, all.Volumes, tt.ours)
			require.Equal(t, tt.want, all.ThinPools[0].Others)
			require.Contains(t, s.ran[0], ` --select (lv_tags={"flexlvm"} || lv_attr=~"^V") `)
			require.Contains(t, s.ran[0], ` --select segtype!=linear && (lv_tags={"flexlvm"} || lv_attr=~"^V")`)
		})
	}
}

// flexlvm does not use a pool that lacks its tags.
func TestThinPoolOfOthers(t *testing.T) {
	for name, out := range map[string]string{
		"not there":   golden(t, "no-volumes.json"),
		"no kind":     strings.ReplaceAll(reportOf(t, "thinpool"), ",flexlvm.kind=pool", ""),
		"no pool":     reportOf(t, "pvc-1"),
		"not flexlvm": strings.ReplaceAll(reportOf(t, "thinpool"), `"flexlvm,`, `"`),
	} {
		c, _ := client(t, map[string][]answer{"lvs": {{out: out}}})
		_, err := c.ThinPool(t.Context(), "flexlvm", "thinpool")
		require.ErrorIs(t, err, ErrNoPool, name)
	}
	// A partly tagged pool is listed as a volume, whose tags are invalid.
	c, _ := client(t, map[string][]answer{"lvs": {{out: strings.ReplaceAll(reportOf(t, "thinpool"), ",flexlvm.kind=pool", "")}}})
	volumes, err := c.Volumes(t.Context())
	require.NoError(t, err)
	require.Len(t, volumes, 1)
}

func TestUnfitThinPools(t *testing.T) {
	good := reportOf(t, "thinpool")
	for says, out := range map[string]string{
		"":                      good,
		"keep writers waiting":  strings.ReplaceAll(good, `"error"`, `"queue"`),
		"does not zero":         strings.ReplaceAll(good, `"zero":"zero"`, `"zero":""`),
		`LVM says "out_of_dat`:  strings.ReplaceAll(good, `"lv_health_status":""`, `"lv_health_status":"out_of_data"`),
		"is not active":         strings.ReplaceAll(good, `"4.88"`, `""`),
		"lvchange --activate y": strings.ReplaceAll(good, `"10.13"`, `""`),
	} {
		c, _ := client(t, map[string][]answer{"lvs": {{out: out}}})
		p, err := c.ThinPool(t.Context(), "flexlvm", "thinpool")
		require.NoError(t, err)
		require.Contains(t, p.Unfit(), says)
		require.Equal(t, says == "", p.Unfit() == "")
	}
	for _, bad := range []string{"12.5", "12,50", "101.00", "-1.00", "x"} {
		c, _ := client(t, map[string][]answer{"lvs": {{out: strings.ReplaceAll(good, "4.88", bad)}}})
		_, err := c.ThinPool(t.Context(), "flexlvm", "thinpool")
		require.ErrorContains(t, err, "not a percentage", bad)
	}
}

func TestThinVolumes(t *testing.T) {
	lv := LogicalVolume{
		Group: "flexlvm", Name: "pvc-9", Size: 300 * volume.MiB, Tags: []string{"flexlvm", "flexlvm.state=creating"},
		Shape: volume.Shape{Layout: volume.Thin, ThinPool: "thinpool", Ratio: 2000},
	}
	pool := answer{out: reportOf(t, "thinpool")}
	c, s := client(t, map[string][]answer{"lvs": {pool}, "lvcreate": {{}}})
	require.NoError(t, c.Create(t.Context(), lv))
	require.Equal(t, "lvcreate --yes --type thin --thinpool thinpool --addtag flexlvm --addtag flexlvm.state=creating --virtualsize 314572800b --name pvc-9 -- flexlvm", s.ran[1])

	c, s = client(t, map[string][]answer{"lvs": {pool}, "lvextend": {{}}})
	require.NoError(t, c.Extend(t.Context(), lv, 2048*volume.MiB), "the pool has 1948 MiB free, and 1748 more are asked for")
	require.Equal(t, "lvextend --yes --size 2147483648b -- flexlvm/pvc-9", s.ran[1])

	snapshot := LogicalVolume{Group: "flexlvm", Name: "pvc-10", Tags: lv.Tags, Shape: lv.Shape}
	c, s = client(t, map[string][]answer{"lvs": {pool}, "lvcreate": {{}}})
	require.NoError(t, c.CreateThinSnapshot(t.Context(), lv, snapshot))
	require.Equal(t, "lvcreate --yes --snapshot --setactivationskip n --addtag flexlvm --addtag flexlvm.state=creating --name pvc-10 -- flexlvm/pvc-9", s.ran[1])

	inactive := answer{out: strings.NewReplacer(`"4.88"`, `""`, `"10.13"`, `""`).Replace(pool.out)}
	c, s = client(t, map[string][]answer{"lvs": {inactive, pool}, "lvchange": {{}}, "lvcreate": {{}}})
	require.NoError(t, c.Create(t.Context(), lv), "a boot has left the pool inactive")
	require.Equal(t, "lvchange --yes --activate y -- flexlvm/thinpool", s.ran[1])

	groups, gone, taken := answer{out: golden(t, "groups.json")}, answer{out: golden(t, "no-volumes.json")}, answer{out: reportOf(t, "pvc-1")}
	full := answer{out: strings.NewReplacer(`"4.88"`, `"100.00"`, `"lv_health_status":""`, `"lv_health_status":"out_of_data"`).Replace(pool.out)}
	noMetadata := answer{out: strings.ReplaceAll(pool.out, `"10.13"`, `"100.00"`)}
	for name, c := range map[string]struct {
		answers map[string][]answer
		is      error
	}{
		"no pool":                 {map[string][]answer{"lvs": {gone, gone}, "vgs": {groups, groups}}, ErrNoPool},
		"no pool, and it is made": {map[string][]answer{"lvs": {gone, taken}, "vgs": {groups}}, ErrExists},
		"full":                    {map[string][]answer{"lvs": {full, gone}, "vgs": {groups, groups}}, ErrNoSpace},
		"no metadata":             {map[string][]answer{"lvs": {noMetadata, gone}, "vgs": {groups, groups}}, ErrNoSpace},
		"not to be activated":     {map[string][]answer{"lvs": {inactive, gone}, "vgs": {groups, groups}, "lvchange": {{err: failed}}}, failed},
		"LVM fails":               {map[string][]answer{"lvs": {pool, gone}, "vgs": {groups, groups}, "lvcreate": {{err: failed}}}, failed},
		"LVM fails, it is there":  {map[string][]answer{"lvs": {pool, taken}, "vgs": {groups}, "lvcreate": {{err: failed}}}, ErrExists},
	} {
		client, _ := client(t, c.answers)
		require.ErrorIs(t, client.Create(t.Context(), lv), c.is, name)
	}
	c, _ = client(t, map[string][]answer{"lvs": {pool, taken}, "vgs": {groups}, "lvcreate": {{err: failed}}})
	require.ErrorIs(t, c.CreateThinSnapshot(t.Context(), lv, snapshot), ErrExists)
	c, s = client(t, map[string][]answer{"lvs": {full, gone}, "vgs": {groups, groups}})
	require.ErrorIs(t, c.CreateThinSnapshot(t.Context(), lv, snapshot), ErrNoSpace)
	require.NotContains(t, strings.Join(s.ran, "\n"), "lvcreate")
	c, _ = client(t, map[string][]answer{"lvs": {pool}})
	err := c.Extend(t.Context(), lv, 4*volume.GiB)
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "delete claims that nobody needs (never logical volumes by hand)")
}
