package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A fakeGroup is a volume group in memory, with the two volumes of a batch. It answers LVM's report commands,
// and removes volumes only with removes set.
type fakeGroup struct {
	lvs     []fakeLV
	removes bool  // lvremove removes volumes
	missing int   // devices
	report  error // the error of the next reports
	// exported is vg_exported: no command except reports of groups accepts the group then.
	exported string
	device   string
	ran      []string
}

type fakeLV struct {
	name, uuid, attr, size, tags string
	group                        string // empty: flexlvm
}

const lvmFailed = "some words of lvremove"

func (g *fakeGroup) run(argv ...string) (string, error) {
	line := strings.Join(argv, " ")
	g.ran = append(g.ran, line)
	if g.exported != "" && strings.HasPrefix(argv[0], "lv") && argv[0] != "lvm" {
		return "", exec.CodeExitError{Code: 5, Err: errors.New("Volume group flexlvm is exported")}
	}
	switch argv[0] {
	case "lvchange":
		return "changed", nil
	case "pvs":
		return fmt.Sprintf(`{"report":[{"pv":[{"pv_name":%q,"pv_free":"0","pv_missing":"","pv_mda_used_count":"1","pv_allocatable":"allocatable"}]}]}`, g.device), nil
	case "lvremove":
		if g.removes {
			g.lvs = slices.DeleteFunc(g.lvs, func(lv fakeLV) bool { return lv.group == "" })
			return "", nil
		}
		return "", exec.CodeExitError{Code: 5, Err: errors.New(lvmFailed)}
	}
	if g.report != nil {
		return "", g.report
	}
	var rows []string
	for _, lv := range g.lvs {
		groupName, groupUUID := cmp.Or(lv.group, "flexlvm"), cmp.Or(lv.group, "group")+"-uuid"
		byTag := strings.Contains(line, `lv_tags={"flexlvm"}`) && slices.Contains(strings.Split(lv.tags, ","), volume.TagOwned)
		if byTag || strings.Contains(line, `lv_uuid="`+lv.uuid+`"`) || strings.Contains(line, `lv_name="`+lv.name+`"`) {
			rows = append(rows, fmt.Sprintf(`{"vg_name":%q,"vg_uuid":%q,"vg_extent_size":"4194304","lv_name":%q,"lv_uuid":%q,"lv_size":%q,"lv_tags":%q,"lv_active":"active","lv_attr":%q,"lv_device_open":"","lv_time":"1795226345","lv_health_status":"","sync_percent":"","raid_sync_action":"","origin":"","snap_percent":"","lv_snapshot_invalid":"","pool_lv":"","data_percent":"","metadata_percent":"","lv_metadata_size":"","lv_when_full":""}`,
				groupName, groupUUID, lv.name, lv.uuid, lv.size, lv.tags, lv.attr))
		}
	}
	return fmt.Sprintf(`{"report":[{"vg":[{"vg_name":"flexlvm","vg_uuid":"group-uuid","vg_size":"1258291200","vg_free":"0","vg_extent_size":"4194304","vg_mda_size":"1","vg_mda_free":"1","vg_mda_used_count":"2","lv_count":"2","pv_count":"2","vg_missing_pv_count":"%d","vg_exported":%q}],"pv":[],"lv":[%s],"pvseg":[],"seg":[]}]}`,
		g.missing, g.exported, strings.Join(rows, ",")), nil
}

// A volume only counts as gone if LVM shows that, whatever happens between the removal and the listing of
// what is left.
func TestABatchIsGoneOnlyOnProof(t *testing.T) {
	tests := map[string]struct {
		after func(*fakeGroup) // between tagging and lvremove
		says  string           // for both volumes; empty: they are gone
	}{
		"removed": {func(g *fakeGroup) { g.removes = true }, ""},
		"removed, in the original of a copied group": {func(g *fakeGroup) {
			g.removes = true
			for _, lv := range g.lvs {
				lv.group = "copy"
				g.lvs = append(g.lvs, lv)
			}
		}, ""},
		"not removed":                 {func(*fakeGroup) {}, lvmFailed},
		"snapshots were made of them": {func(g *fakeGroup) { g.lvs[0].attr, g.lvs[1].attr = "owi-a-s---", "Owi-a-s---" }, "has snapshots, which would be removed with it"},
		"LVM does not answer":         {func(g *fakeGroup) { g.report = errors.New("no answer") }, "no answer"},
		"a row makes no sense":        {func(g *fakeGroup) { g.lvs[1].size = "much" }, "not a number"},
		"devices are missing":         {func(g *fakeGroup) { g.lvs, g.missing = nil, 1 }, "does not show that it is gone"},
		"a person has taken the tags": {func(g *fakeGroup) { g.lvs[0].tags, g.lvs[1].tags = "", "" }, lvmFailed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for i, err := range removeTwo(t, test.after) {
				if test.says == "" {
					require.NoError(t, err, i)
				} else {
					require.ErrorContains(t, err, test.says, i)
				}
			}
		})
	}
}

// Nothing is removed in an exported group, not even the records of its volumes.
func TestABatchInAnExportedGroupIsLeftAlone(t *testing.T) {
	e, g, refs := batchOfTwo(t, func(*fakeGroup) {})
	for _, ref := range refs {
		require.NoError(t, e.records.write(ref.Group, ref.Name, newRecord(ref.UUID, sourceTags())))
	}
	g.exported = "exported"
	for i, err := range e.RemoveAll(t.Context(), refs) {
		require.ErrorContains(t, err, "`vgimport flexlvm`")
		rec, err := e.records.read(refs[i].Group, refs[i].Name)
		require.NoError(t, err)
		require.Equal(t, volume.Ready, rec.State)
	}
}

// A mount in an exported group reports that, whether or not the node has had the volume, and creates nothing.
func TestMountInAnExportedGroup(t *testing.T) {
	e, g, refs := batchOfTwo(t, func(*fakeGroup) {})
	g.exported = "exported"
	tags := sourceTags()
	s := volume.Spec{Group: refs[0].Group, Name: refs[0].Name, Size: tags.Size, Layout: volume.Linear, Cluster: tags.Cluster, Namespace: tags.Namespace}
	for _, recorded := range []bool{false, true} {
		if recorded {
			require.NoError(t, e.records.write(s.Group, s.Name, newRecord(refs[0].UUID, tags)))
		}
		err := e.Mount(t.Context(), s, MountRequest{Target: t.TempDir()})
		require.ErrorIs(t, err, lvm.ErrExported)
		require.ErrorContains(t, err, "`vgimport flexlvm`")
		known, err := e.records.hasRecordOf(s.Group, s.Name)
		require.NoError(t, err)
		require.Equal(t, recorded, known, "nothing is written down of a volume that was not made")
	}
}

// The inventory contains the remedy for each volume that pods should mount.
func TestInventoryOfAnExportedGroup(t *testing.T) {
	e, g, _ := batchOfTwo(t, func(*fakeGroup) {})
	g.lvs[0].tags = strings.Join(sourceTags().Strings(), ",")
	for _, exported := range []string{"", "exported"} {
		g.exported = exported
		in, err := e.Inventory(t.Context())
		require.NoError(t, err)
		require.Len(t, in.Volumes, 2)
		for _, v := range in.Volumes {
			require.Equal(t, exported != "" && v.State == volume.Ready, strings.Contains(v.Problem, "`vgimport flexlvm`"), "%s: %s", v.Name, v.Problem)
		}
	}
}

// The records of other doomed volumes are removed once per batch.
func TestABatchRemovesGoneRecordsOnce(t *testing.T) {
	e, g, refs := batchOfTwo(t, func(g *fakeGroup) { g.removes = true })
	other := volume.Name("other").Doomed()
	require.NoError(t, e.records.write("flexlvm", other, record{State: volume.Doomed, VolumeUUID: "uuid", Wiped: volume.GiB}))
	g.lvs = append(g.lvs, fakeLV{name: string(other), uuid: "uuid", attr: "-wi-a-----", size: "67108864"})
	for _, err := range e.RemoveAll(t.Context(), refs) {
		require.NoError(t, err)
	}
	asked := slices.DeleteFunc(g.ran, func(line string) bool { return !strings.Contains(line, string(other)) })
	require.Len(t, asked, 1)
}

// removeTwo removes two unreferenced volumes together, and calls after right before lvremove.
func removeTwo(t *testing.T, after func(*fakeGroup)) []error {
	t.Helper()
	e, _, refs := batchOfTwo(t, after)
	return e.RemoveAll(t.Context(), refs)
}

// batchOfTwo returns the arguments of removeTwo's call.
func batchOfTwo(t *testing.T, after func(*fakeGroup)) (*Engine, *fakeGroup, []Ref) {
	t.Helper()
	tags := sourceTags()
	tags.State = volume.Unreferenced
	g := &fakeGroup{device: t.TempDir()}
	var refs []Ref
	for i := range 2 {
		name, uuid := fmt.Sprintf("pvc-%d", i+1), fmt.Sprintf("uuid-%d", i+1)
		g.lvs = append(g.lvs, fakeLV{name: name, uuid: uuid, attr: "-wi-a-----", size: "67108864", tags: strings.Join(tags.Strings(), ",")})
		refs = append(refs, Ref{Group: "flexlvm", Name: volume.Name(name), Cluster: tags.Cluster, UUID: uuid})
	}
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(g.run)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), After: func(step string) {
		if step == "tag doomed" {
			after(g)
		}
	}}, host)
	require.NoError(t, err)
	return e, g, refs
}
