package lvm

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// golden returns a file of testdata, which holds output of LVM 2.03.16.
func golden(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return string(b)
}

// pvc1 is the UUID of pvc-1 in volumes.json.
const pvc1 = "0PK3ff-A6bG-64ya-hshk-Ct4R-4a60-dtuCdp"

// only returns the golden report of volumes with the rows of one volume.
func only(t testing.TB, name string) string {
	t.Helper()
	var rows []string
	for line := range strings.Lines(golden(t, "volumes.json")) {
		if strings.Contains(line, `"lv_name":"`+name+`"`) {
			rows = append(rows, strings.TrimRight(line, ",\n"))
		}
	}
	require.NotEmpty(t, rows)
	return `{"report":[{"lv":[` + strings.Join(rows, ",") + `]}]}`
}

// script returns each program's next answer.
type script struct {
	t       *testing.T
	answers map[string][]answer
	ran     []string
}

type answer struct {
	out string
	err error
}

func (s *script) run(argv ...string) (string, error) {
	s.ran = append(s.ran, strings.Join(argv, " "))
	left := s.answers[argv[0]]
	require.NotEmpty(s.t, left, "nobody expected %s", argv)
	s.answers[argv[0]] = left[1:]
	return left[0].out, left[0].err
}

func client(t *testing.T, answers map[string][]answer) (*Client, *script) {
	s := &script{t: t, answers: answers}
	c := New(commandtest.Func(s.run), lock.Dir(t.TempDir()))
	c.sync = func(device string) error {
		s.ran = append(s.ran, "flush "+device)
		return nil
	}
	return c, s
}

var failed = exec.CodeExitError{Code: 5, Err: errors.New("something in prose")}

func TestVolume(t *testing.T) {
	c, s := client(t, map[string][]answer{"lvs": {{out: only(t, "pvc-1")}}})
	lv, err := c.Volume(t.Context(), "flexlvm", "pvc-1")
	require.NoError(t, err)
	require.Equal(t, LogicalVolume{
		Group: "flexlvm", GroupUUID: "JX73Fe-YsI9-e5Mp-gprU-V7Xe-iTJw-crsSPE",
		Name: "pvc-1", UUID: pvc1, Size: 140 * volume.MiB, Extent: 4 * volume.MiB, Shape: volume.Shape{Layout: volume.Linear},
		Tags: []string{"flexlvm", "flexlvm.size=67108864", "flexlvm.state=ready"}, Attr: "owi-aos---",
		Active: true, Open: true, HasSnapshots: true, Created: time.Unix(1795226345, 0).UTC(),
	}, lv, "of two segments")
	require.Equal(t, `lvs --reportformat json --units b --nosuffix --config `+reportConfig+` --options `+volumeFields+`,`+shapeFields+` --select lv_name="pvc-1" -- flexlvm`, s.ran[0])
}

func TestVolumesOfEveryState(t *testing.T) {
	c, _ := client(t, map[string][]answer{"lvs": {{out: golden(t, "volumes.json")}}})
	all, err := c.Volumes(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 7, "one for each, also for those of several segments")
	snapshot, inactive, striped, raid1, foreign := all[0], all[3], all[4], all[5], all[6]
	require.Empty(t, snapshot.Tags)
	require.False(t, snapshot.HasSnapshots)
	require.False(t, inactive.Active)
	require.False(t, inactive.Open)
	require.Empty(t, foreign.Tags)

	require.Equal(t, volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 128}, striped.Shape)
	require.Equal(t, 72*volume.MiB, striped.Takes())
	require.Equal(t, volume.Shape{Layout: volume.Raid1, Mirrors: 1}, raid1.Shape)
	require.Equal(t, 72*volume.MiB, raid1.Size, "that of one copy")
	require.Equal(t, 2*(72+4)*volume.MiB, raid1.Takes())
	require.Equal(t, "100.00", raid1.Sync)
	require.Equal(t, "idle", raid1.SyncAction)
	require.Empty(t, raid1.Health)
}

func TestShapesThatAreNotOurs(t *testing.T) {
	for kind, stripes := range map[string]int{"raid5": 3, "mirror": 2, "thin-pool": 1, "raid10": 4, "snapshot": 1, "striped": 1, "raid1": 1} {
		require.Empty(t, shapeOf(kind, stripes, 0), kind)
	}
}

func TestGroup(t *testing.T) {
	c, _ := client(t, map[string][]answer{"vgs": {{out: golden(t, "groups.json")}, {out: golden(t, "no-groups.json")}}})
	g, err := c.Group(t.Context(), "flexlvm")
	require.NoError(t, err)
	require.Equal(t, VolumeGroup{
		Name: "flexlvm", UUID: "djh9yK-kdRJ-WGvL-Slde-Imz1-NhIY-fipqqe", Size: 3200253952, Free: 2327838720,
		Extent: 4 * volume.MiB, MetadataSize: 17821696, MetadataFree: 8908288, MetadataCopies: 1, Volumes: 3, Devices: 1,
	}, g)
	_, err = c.Group(t.Context(), "x")
	require.ErrorIs(t, err, ErrNoGroup)
}

// ErrNoVolume is returned only if LVM reports the whole group without the volume.
func TestAbsenceIsPositive(t *testing.T) {
	c, _ := client(t, map[string][]answer{"lvs": {{out: golden(t, "no-volumes.json")}}, "vgs": {{out: golden(t, "groups.json")}}})
	_, err := c.Volume(t.Context(), "flexlvm", "x")
	require.ErrorIs(t, err, ErrNoVolume)
	partial := strings.ReplaceAll(golden(t, "groups.json"), `"vg_missing_pv_count":"0"`, `"vg_missing_pv_count":"1"`)

	for name, answers := range map[string]map[string][]answer{
		"group gone":            {"lvs": {{err: failed}}, "vgs": {{out: golden(t, "no-groups.json")}}},
		"lvs failed":            {"lvs": {{err: failed}}, "vgs": {{out: golden(t, "groups.json")}}},
		"both failed":           {"lvs": {{err: failed}}, "vgs": {{err: failed}}},
		"no answer in time":     {"lvs": {{err: context.DeadlineExceeded}}},
		"not JSON":              {"lvs": {{out: "WARNING: device is gone"}}},
		"JSON of another day":   {"lvs": {{out: `{"raport":[]}`}}},
		"no group to be seen":   {"lvs": {{out: golden(t, "no-volumes.json")}}, "vgs": {{out: golden(t, "no-groups.json")}}},
		"a device is missing":   {"lvs": {{out: golden(t, "no-volumes.json")}}, "vgs": {{out: partial}}},
		"the group is exported": {"lvs": {{err: failed}}, "vgs": {{out: exportedGroup(t)}}},
		"the group fails":       {"lvs": {{out: golden(t, "no-volumes.json")}}, "vgs": {{err: failed}}},
		"open is numeric":       {"lvs": {{out: strings.ReplaceAll(only(t, "pvc-1"), `"lv_device_open":"open"`, `"lv_device_open":"1"`)}}},
		"half a row":            {"lvs": {{out: `{"report":[{"lv":[{"lv_name":"x"}]}]}`}}},
	} {
		c, _ := client(t, answers)
		_, err := c.Volume(t.Context(), "flexlvm", "x")
		require.Error(t, err, name)
		require.NotErrorIs(t, err, ErrNoVolume, name)
	}
}

func TestCreateExplainsByWhatIsThere(t *testing.T) {
	group, none := answer{out: golden(t, "groups.json")}, answer{out: golden(t, "no-volumes.json")}
	small := strings.ReplaceAll(group.out, "2327838720", "4194304")
	for name, c := range map[string]struct {
		answers map[string][]answer
		want    error
		text    string
	}{
		"taken":      {map[string][]answer{"vgs": {{out: golden(t, "groups.json")}}, "lvs": {{out: golden(t, "volumes.json")}}}, ErrExists, "flexlvm/pvc-1"},
		"full":       {map[string][]answer{"vgs": {{out: small}, {out: small}}, "lvs": {{out: golden(t, "no-volumes.json")}}}, ErrNoSpace, "flexlvm has 4194304 bytes free (4 MiB) of 3200253952 and 402653184 are needed (384 MiB)"},
		"no group":   {map[string][]answer{"vgs": {{out: golden(t, "no-groups.json")}}}, ErrNoGroup, "if it was there, bring its disks back (`flexlvm doctor --group "},
		"other":      {map[string][]answer{"vgs": {group, group, group, group}, "lvs": {none, none}}, failed, "something in prose"},
		"blind then": {map[string][]answer{"vgs": {{err: failed}}}, failed, "look up volume group"},
	} {
		c.answers["lvcreate"] = []answer{{err: failed}, {err: failed}} // the second is used only if there is room
		cl, s := client(t, c.answers)
		err := cl.Create(t.Context(), LogicalVolume{Group: "flexlvm", Name: "pvc-1", Size: 384 * volume.MiB, Tags: []string{"flexlvm"}})
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.text, name)
		require.Equal(t, "lvcreate --yes --wipesignatures y --zero y --type linear --addtag flexlvm --size 402653184b --name pvc-1 -- flexlvm", s.ran[0])
	}
}

// If LVM fails, Extend checks the size of the volume: the command of a killed call may have extended it meanwhile.
func TestExtend(t *testing.T) {
	lv := LogicalVolume{Group: "flexlvm", Name: "pvc-1", Size: 392 * volume.MiB}
	c, s := client(t, nil)
	require.NoError(t, c.Extend(t.Context(), lv, lv.Size))
	require.Empty(t, s.ran, "large enough already")

	lv.Size = 100 * volume.MiB
	c, _ = client(t, map[string][]answer{"lvextend": {{err: failed}}, "lvs": {{out: only(t, "pvc-1")}}})
	require.NoError(t, c.Extend(t.Context(), lv, 136*volume.MiB))

	small := strings.ReplaceAll(golden(t, "groups.json"), "2327838720", "0")
	c, _ = client(t, map[string][]answer{"lvextend": {{err: failed}}, "lvs": {{out: only(t, "pvc-1")}}, "vgs": {{out: small}}})
	require.ErrorIs(t, c.Extend(t.Context(), lv, volume.TiB), ErrNoSpace)
}

func TestRemoveBelievesOnlyLVM(t *testing.T) {
	lv := LogicalVolume{Group: "flexlvm", Name: "pvc-1", UUID: pvc1}
	c, s := client(t, map[string][]answer{"lvremove": {{}}, "lvs": {{out: golden(t, "no-volumes.json")}}, "vgs": {{out: golden(t, "groups.json")}}})
	require.NoError(t, c.Remove(t.Context(), lv))
	require.Equal(t, `lvremove --yes --select lv_uuid="`+pvc1+`" && lv_name="pvc-1" && lv_tags={"flexlvm"} && lv_attr!~"^[oO]" -- flexlvm`, s.ran[0])

	plain := strings.ReplaceAll(only(t, "pvc-1"), `"owi-aos---"`, `"-wi-ao----"`)
	c, _ = client(t, map[string][]answer{"lvremove": {{}}, "lvs": {{out: plain}}})
	require.ErrorContains(t, c.Remove(t.Context(), lv), "still there and LVM gave no reason")
	c, _ = client(t, map[string][]answer{"lvremove": {{}}, "lvs": {{out: only(t, "pvc-1")}}})
	require.ErrorContains(t, c.Remove(t.Context(), lv), "has snapshots")
	c, _ = client(t, map[string][]answer{"lvremove": {{}}, "lvs": {{err: failed}}, "vgs": {{err: failed}}})
	require.ErrorContains(t, c.Remove(t.Context(), lv), "cannot tell")
	c, _ = client(t, map[string][]answer{"lvremove": {{err: failed}}})
	require.True(t, errors.Is(c.Remove(t.Context(), lv), failed))
}

func TestTwoGroupsOfOneName(t *testing.T) {
	row := `{"vg_name":"flexlvm", "vg_uuid":"`
	twice := strings.Replace(golden(t, "groups.json"), row, row+`other", "vg_size":"1", "vg_free":"1", "vg_extent_size":"1", "vg_mda_size":"1", "vg_mda_free":"1", "vg_mda_used_count":"1", "lv_count":"1", "pv_count":"1", "vg_missing_pv_count":"0", "vg_exported":""}, `+row, 1)
	c, _ := client(t, map[string][]answer{"vgs": {{out: twice}}})
	_, err := c.Group(t.Context(), "flexlvm")
	require.ErrorContains(t, err, "2 groups of that name (other, djh9yK-kdRJ-WGvL-Slde-Imz1-NhIY-fipqqe)")
}

// Retag of a volume that has changed meanwhile is an error, and changes nothing.
func TestRetag(t *testing.T) {
	devices := answer{out: golden(t, "devices.json")}
	lv := LogicalVolume{Group: "flexlvm", Name: "pvc-1", UUID: pvc1}
	del, add := []string{"flexlvm.state=creating"}, []string{"flexlvm.state=ready"}
	c, s := client(t, map[string][]answer{"lvchange": {{out: "  Logical volume flexlvm/pvc-1 changed.\n"}}, "pvs": {devices}})
	require.NoError(t, c.Retag(t.Context(), lv, del, add))
	require.Equal(t, `lvchange --config backup{archive=0} --deltag flexlvm.state=creating --addtag flexlvm.state=ready --select lv_uuid="`+pvc1+`" && lv_tags={"flexlvm.state=creating"} -- flexlvm`, s.ran[0])

	c, _ = client(t, map[string][]answer{"lvchange": {{}}, "lvs": {{out: only(t, "pvc-1")}}, "pvs": {devices}})
	require.NoError(t, c.Retag(t.Context(), lv, del, add), "it is as it should be")
	c, _ = client(t, map[string][]answer{"lvchange": {{}}, "lvs": {{out: only(t, "pvc-1")}}})
	require.ErrorContains(t, c.Retag(t.Context(), lv, del, []string{"flexlvm.state=retained"}), "changed meanwhile")
	lv.UUID = "another"
	c, _ = client(t, map[string][]answer{"lvchange": {{}}, "lvs": {{out: only(t, "pvc-1")}}})
	require.ErrorContains(t, c.Retag(t.Context(), lv, del, add), "changed meanwhile")
}

func TestSplitUUID(t *testing.T) {
	g, v, ok := splitUUID("LVM-djh9yKkdRJWGvLSldeImz1NhIYfipqqeIaBxi0yltapXv5RPhZbHjufjQfD4p6YP")
	require.True(t, ok)
	require.Equal(t, "djh9yK-kdRJ-WGvL-Slde-Imz1-NhIY-fipqqe", g)
	require.Equal(t, "IaBxi0-ylta-pXv5-RPhZ-bHju-fjQf-D4p6YP", v)
	for _, s := range []string{"", "LVM-", "CRYPT-LUKS2-0d9ee5ba", "LVM-djh9yKkdRJWGvLSldeImz1NhIYfipqqeIaBxi0yltapXv5RPhZbHjufjQfD4p6YP-real"} {
		_, _, ok := splitUUID(s)
		require.False(t, ok, s)
	}
}

func FuzzReport(f *testing.F) {
	for _, name := range []string{"volumes.json", "no-volumes.json", "groups.json", "everything.json", "degraded.json", "thin.json"} {
		f.Add(golden(f, name))
	}
	f.Add(`{"report":[{"lv":[{"lv_size":"-1"}]}]}`)
	f.Fuzz(func(t *testing.T, s string) {
		volumes, err := parseVolumes([]byte(s))
		if err == nil {
			for _, v := range volumes {
				require.GreaterOrEqual(t, v.Size, volume.Bytes(0))
				require.NotEmpty(t, v.Name)
				v.Takes()
			}
		}
		_, _ = parseGroups([]byte(s))
		pools, _ := parseThinPools([]byte(s))
		for _, p := range pools {
			require.LessOrEqual(t, p.Used, p.Size)
			p.Unfit()
		}
	})
}

func TestEverythingIsOneReport(t *testing.T) {
	c, s := client(t, map[string][]answer{"lvm": {{out: golden(t, "everything.json")}}})
	all, err := c.Everything(context.Background())
	require.NoError(t, err)
	groups, volumes := all.Groups, all.Volumes
	require.Empty(t, all.ThinPools)
	require.Len(t, s.ran, 1)
	require.Len(t, groups, 2)
	empty, g := groups[0], groups[1]
	require.Equal(t, volume.Group("g2"), empty.Name)
	require.Equal(t, []volume.Bytes{400 * volume.MiB}, empty.DeviceFree)
	require.Equal(t, volume.Group("flexlvm"), g.Name)
	require.Equal(t, 7, g.Volumes, "the hidden ones are not counted")
	require.Equal(t, []volume.Bytes{300 * volume.MiB, 300 * volume.MiB, 44 * volume.MiB}, g.DeviceFree)
	require.Len(t, volumes, 4, "only ours")
	linear, inactive, striped, raid1 := volumes[0], volumes[1], volumes[2], volumes[3]
	require.Equal(t, volume.Name("pvc-1"), linear.Name)
	require.Equal(t, g.UUID, linear.GroupUUID)
	require.True(t, linear.Active)
	require.False(t, inactive.Active)
	require.Equal(t, volume.Shape{Layout: volume.Linear}, linear.Shape)
	require.Equal(t, volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 128}, striped.Shape)
	require.Equal(t, volume.Shape{Layout: volume.Raid1, Mirrors: 1}, raid1.Shape)
	require.Equal(t, map[string]volume.Bytes{"/dev/mapper/a": 140 * volume.MiB}, linear.On, "of two segments")
	require.Equal(t, map[string]volume.Bytes{"/dev/mapper/a": 24 * volume.MiB, "/dev/mapper/b": 24 * volume.MiB, "/dev/mapper/c": 24 * volume.MiB}, striped.On)
	require.Equal(t, map[string]volume.Bytes{"/dev/mapper/b": 76 * volume.MiB, "/dev/mapper/c": 76 * volume.MiB}, raid1.On, "with the metadata of each copy")
	require.Equal(t, g.Size-g.Free, 112*volume.MiB+linear.Takes()+inactive.Takes()+striped.Takes()+raid1.Takes(), "the rest is not ours")

	for name, out := range map[string]string{"no report": "{}", "nothing": "", "half": golden(t, "everything.json")[:900], "a row makes no sense": strings.Replace(golden(t, "everything.json"), `"lv_size":"146800640"`, `"lv_size":"much"`, 1)} {
		c, _ := client(t, map[string][]answer{"lvm": {{out: out}}})
		all, err := c.Everything(context.Background())
		require.Error(t, err, name)
		require.Empty(t, all, name)
	}
}

// A group all of whose devices are closed to allocation differs from one whose devices are unknown.
func TestEverythingOfAGroupThatIsNotAllocatable(t *testing.T) {
	closed := strings.ReplaceAll(golden(t, "everything.json"), `"pv_allocatable":"allocatable"`, `"pv_allocatable":""`)
	c, _ := client(t, map[string][]answer{"lvm": {{out: closed}}})
	all, err := c.Everything(t.Context())
	require.NoError(t, err)
	require.Equal(t, []volume.Bytes{}, all.Groups[1].DeviceFree)
	require.Positive(t, all.Groups[1].Free)
}

// If a disk is missing, the volumes on it are reported as partial, and its free space does not count.
func TestEverythingOfAGroupThatIsNotWhole(t *testing.T) {
	c, _ := client(t, map[string][]answer{"lvm": {{out: golden(t, "degraded.json")}}})
	all, err := c.Everything(t.Context())
	require.NoError(t, err)
	groups, volumes := all.Groups, all.Volumes
	require.Equal(t, 1, groups[1].Missing)
	require.Equal(t, []volume.Bytes{300 * volume.MiB, 84 * volume.MiB}, groups[1].DeviceFree)
	health := map[volume.Name]string{}
	for _, v := range volumes {
		health[v.Name] = v.Health
	}
	require.Equal(t, map[volume.Name]string{"pvc-1": "", "pvc-2": "", "pvc-3": "partial", "pvc-4": "partial"}, health)
}

// The full report contains an exported group and its volumes, but lvs refuses the group.
func TestExported(t *testing.T) {
	full := strings.ReplaceAll(golden(t, "everything.json"), `"vg_exported":""`, `"vg_exported":"exported"`)
	c, _ := client(t, map[string][]answer{"lvm": {{out: full}}, "lvs": {{err: failed}}, "vgs": {{out: exportedGroup(t)}}})
	all, err := c.Everything(t.Context())
	require.NoError(t, err)
	require.True(t, all.Groups[0].Exported && all.Groups[1].Exported)
	require.NotEmpty(t, all.Volumes)
	_, err = c.Volume(t.Context(), "flexlvm", "x")
	require.ErrorIs(t, err, ErrExported)
	require.ErrorContains(t, err, "`vgimport flexlvm`")
}

func exportedGroup(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(golden(t, "groups.json"), `"vg_exported":""`, `"vg_exported":"exported"`)
}

func TestAlone(t *testing.T) {
	c := New(commandtest.Func((&script{t: t}).run), lock.Dir(t.TempDir()))
	require.NoError(t, c.Alone(t.Context(), func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Groups(ctx)
		require.ErrorIs(t, err, lock.ErrBusy)
		return nil
	}))
}
