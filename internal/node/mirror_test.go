package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A fakeMirror is a raid1 volume with two copies, data_rimage_0 and data_rimage_1.
type fakeMirror struct {
	health [2]string // of each copy, as LVM reports it
	broken bool      // LVM cannot activate anything
	ran    []string  // the activation modes of the lvchange commands
}

func (m *fakeMirror) run(argv ...string) (string, error) {
	switch argv[0] {
	case "lvchange":
		complete := slices.Contains(argv, "complete")
		m.ran = append(m.ran, map[bool]string{true: "complete", false: "degraded"}[complete])
		missing := slices.Contains(m.health[:], "partial")
		if m.broken || complete && missing || m.health == [2]string{"partial", "partial"} {
			return "", exec.CodeExitError{Code: 5, Err: errors.New("Refusing activation of partial LV")}
		}
		return "", nil
	case "lvs":
		if strings.Contains(strings.Join(argv, " "), `lv_name="data"`) {
			return `{"report":[{"lv":[{"vg_name":"flexlvm","vg_uuid":"group-uuid","vg_extent_size":"4194304","lv_name":"data","lv_uuid":"lv-1","lv_size":"4194304","lv_tags":"","lv_active":"","lv_attr":"owi-----p-","lv_device_open":"","lv_time":"1795226345","lv_health_status":"","sync_percent":"","origin":"","snap_percent":"","lv_snapshot_invalid":"","pool_lv":"","data_percent":"","metadata_percent":"","lv_metadata_size":"","lv_when_full":"","segtype":"raid1","stripes":"2","stripe_size":"0","thin_count":"","chunk_size":"0","zero":""}]}]}`, nil
		}
		var rows []string
		for i, health := range m.health {
			rows = append(rows, fmt.Sprintf(`{"vg_name":"flexlvm","lv_name":"[data_rimage_%d]","lv_uuid":"copy-%d","lv_parent":"data","lv_health_status":%q}`, i, i, health))
		}
		return `{"report":[{"lv":[` + strings.Join(rows, ",") + `]}]}`, nil
	case "pvs":
		return `{"report":[{"pv":[{"pv_uuid":"pv-there","pv_missing":""},{"pv_uuid":"pv-away","pv_missing":"missing"}]}]}`, nil
	}
	return "", fmt.Errorf("ran %s", argv)
}

func mirrorEngine(t *testing.T) (*Engine, *fakeMirror) {
	t.Helper()
	m := &fakeMirror{}
	run := commandtest.Func(m.run)
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Uptime: func() time.Duration { return time.Hour }, Now: func() time.Time { return now }}, command.Programs{Unkillable: run, Killable: run})
	require.NoError(t, err)
	return e, m
}

func mirrorLV() lvm.LogicalVolume {
	return lvm.LogicalVolume{Group: "flexlvm", Name: "data", UUID: "lv-1", Shape: volume.Shape{Layout: volume.Raid1, Mirrors: 1}}
}

// Each of two boots finds only one disk, and not the same one. The second boot must not bring back the data from
// before the first.
func TestMirrorIsNotActivatedOnAnOldCopy(t *testing.T) {
	e, m := mirrorEngine(t)
	lv, ctx := mirrorLV(), t.Context()
	require.NoError(t, e.activate(ctx, lv))
	require.Equal(t, []string{"complete"}, m.ran)
	require.False(t, e.copyNotes.exists(lv.UUID))

	uptime := bootGrace - 61*time.Second
	e.uptime = func() time.Duration { return uptime }
	m.ran, m.health = nil, [2]string{"", "partial"}
	err := e.activate(ctx, lv)
	require.ErrorIs(t, err, lvm.ErrPartial)
	require.ErrorContains(t, err, "pv-away")
	require.ErrorContains(t, err, "from 2026-05-04T03:04:00Z on it is activated without them")
	require.Equal(t, []string{"complete"}, m.ran)
	require.False(t, e.copyNotes.exists(lv.UUID))

	uptime = bootGrace
	m.ran = nil
	require.NoError(t, e.activate(ctx, lv))
	require.Equal(t, []string{"complete", "degraded"}, m.ran)
	note, err := e.copyNotes.read(lv.UUID)
	require.NoError(t, err)
	require.Equal(t, copyNote{Volume: "flexlvm/data", Since: e.now(), Behind: map[string]string{"copy-1": "data_rimage_1"}}, note)
	require.NoError(t, e.checkCopies(ctx, lv))
	require.NoError(t, e.activate(ctx, lv), "again, as after another boot")

	m.ran, m.health = nil, [2]string{"partial", ""}
	err = e.activate(ctx, lv)
	require.ErrorIs(t, err, lvm.ErrPartial)
	for _, says := range []string{"only copy data_rimage_1 of volume flexlvm/data can be used", "not written to after 2026-05-04T03:02:01Z", "pv-away", "remove " + e.copyNotes.file(lv.UUID)} {
		require.ErrorContains(t, err, says)
	}
	require.Equal(t, []string{"complete"}, m.ran)
	require.ErrorContains(t, e.checkCopies(ctx, lv), "only copy data_rimage_1 of volume flexlvm/data can be used", "the host has activated it")
	m.health = [2]string{"refresh needed", ""}
	require.ErrorContains(t, e.checkCopies(ctx, lv), "has been active alone", "its disk was taken out of the group")

	m.ran, m.health = nil, [2]string{}
	require.ErrorContains(t, e.activate(ctx, lv), "copy data_rimage_1 of volume flexlvm/data was not written to after 2026-05-04T03:02:01Z, and has been active alone")
	require.ErrorContains(t, e.checkCopies(ctx, lv), "has been active alone")
	require.Empty(t, m.ran, "the kernel could overwrite the newest copy")
	m.health = [2]string{"", "partial"}
	require.NoError(t, e.activate(ctx, lv), "without the old copy")
	require.NoError(t, e.checkCopies(ctx, lv))
	m.health = [2]string{"partial", ""}
	require.NoError(t, e.copyNotes.remove(lv.UUID), "a person accepts the old one")
	require.NoError(t, e.activate(ctx, lv))
}

// Whatever the problem of a volume advises, an old copy must not be repaired or refreshed unknowingly.
func TestProblemWarnsOfOldCopies(t *testing.T) {
	e, _ := mirrorEngine(t)
	lv := mirrorLV()
	tags := volume.Tags{State: volume.Ready, FS: "7e57ab1e-0000-4000-8000-000000000001", Size: volume.GiB, Kind: volume.Claim, Namespace: "db"}
	lv.Tags = tags.Strings()
	active, healthy := lv, lv
	active.Active, active.Health = true, "partial"
	healthy.Active = true
	warning := "; " + e.copyNotes.file(lv.UUID) + " records which copies are out of date"
	for _, v := range []lvm.LogicalVolume{lv, active} {
		require.NotEmpty(t, e.describe(v).Problem)
		require.NotContains(t, e.describe(v).Problem, "out of date")
	}
	require.NoError(t, e.copyNotes.write(lv.UUID, copyNote{}))
	require.Contains(t, e.describe(lv).Problem, "inactive; its next mount activates it"+warning)
	require.Regexp(t, "^degraded: .*"+warning+".*do not refresh or repair it", e.describe(active).Problem)
	require.Empty(t, e.describe(healthy).Problem)
	lv.Shape = volume.Shape{Layout: volume.Linear}
	require.NotContains(t, e.describe(lv).Problem, "out of date")
}

// A note that cannot be read or written keeps only volumes with missing copies from being activated. If all
// copies are missing, or activation fails for another reason, the error is LVM's.
func TestMirrorWithoutANote(t *testing.T) {
	e, m := mirrorEngine(t)
	lv, ctx := mirrorLV(), t.Context()
	require.NoError(t, e.copyNotes.write(lv.UUID, copyNote{}))
	file := e.copyNotes.file(lv.UUID)
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.NoError(t, e.activate(ctx, lv))
	require.NoError(t, e.checkCopies(ctx, lv))
	m.health = [2]string{"", "partial"}
	require.ErrorContains(t, e.activate(ctx, lv), file)
	require.ErrorContains(t, e.checkCopies(ctx, lv), "inspect that file and remove it")

	require.NoError(t, os.Remove(file))
	e.copyNotes = copyNotes(os.DevNull)
	m.ran = nil
	require.Error(t, e.activate(ctx, lv))
	require.Equal(t, []string{"complete"}, m.ran, "not before it is on record")

	e, m = mirrorEngine(t)
	m.health = [2]string{"partial", "partial"}
	require.ErrorContains(t, e.activate(ctx, lv), "Refusing activation")
	m.health, m.broken = [2]string{}, true
	require.ErrorContains(t, e.activate(ctx, lv), "Refusing activation")
	require.Equal(t, []string{"complete", "complete"}, m.ran)

	m.ran, m.broken = nil, false
	lv.Shape = volume.Shape{Layout: volume.Linear}
	e.uptime = func() time.Duration { return 0 }
	require.NoError(t, e.activate(ctx, lv))
	require.Equal(t, []string{"degraded"}, m.ran, "LVM's default, for all other layouts")

	m.ran, m.health = nil, [2]string{"", "partial"}
	snapshot := lvm.LogicalVolume{Group: "flexlvm", Name: "snap", UUID: "lv-2", Of: "data", Shape: volume.Shape{Layout: volume.Linear}}
	require.ErrorContains(t, e.activate(ctx, snapshot), "may still appear after the boot", "LVM would activate its source with it")
	require.Equal(t, []string{"complete"}, m.ran)
}

// The daemon's inventory notes the copies that fall behind while a volume is in use, and removes the note when the
// volume is complete and in sync.
func TestCopiesAreNoted(t *testing.T) {
	e, m := mirrorEngine(t)
	lv, ctx := mirrorLV(), t.Context()
	behind := func() []string {
		note, err := e.copyNotes.read(lv.UUID)
		require.NoError(t, err)
		var names []string
		for _, name := range note.Behind {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	activation := "boot/1"
	e.activation = func(lvm.LogicalVolume) string { return activation }
	look := func(active bool, health, sync string, of ...string) {
		lv.Active, lv.Health, lv.Sync = active, health, sync
		m.health = [2]string(of)
		e.noteCopies(ctx, []lvm.LogicalVolume{{Group: "flexlvm", Name: "other"}, lv}, e.now())
	}
	look(false, "partial", "", "", "partial")
	require.Empty(t, behind(), "nobody writes to an inactive volume")
	look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	look(true, "refresh needed", "100.00", "refresh needed", "")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	for _, sync := range []string{"", "12.34"} {
		look(true, "", sync, "", "")
		require.Equal(t, []string{"data_rimage_0"}, behind(), "it is not in sync yet")
	}
	look(true, "mismatches exist", "100.00", "", "")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	look(true, "partial", "100.00", "", "partial")
	require.Equal(t, []string{"data_rimage_1"}, behind(), "the first was brought up to date before the second failed")
	look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, behind(), "and the other way round")
	e.noteCopies(ctx, []lvm.LogicalVolume{{Group: lv.Group, Name: lv.Name, UUID: lv.UUID, Shape: lv.Shape, Active: true, Sync: "100.00"}}, e.now().Add(-time.Second))
	require.True(t, e.copyNotes.exists(lv.UUID), "it is newer than the report")
	look(true, "", "100.00", "", "")
	require.False(t, e.copyNotes.exists(lv.UUID))
	look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	activation = "boot/2" // a person has activated the first copy alone
	look(true, "partial", "12.34", "", "partial")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	look(true, "partial", "100.00", "", "partial")
	require.Equal(t, []string{"data_rimage_0"}, behind(), "the newer copy is away, so the first cannot have become up to date")
	look(true, "partial", "100.00", "partial", "refresh needed")
	require.Equal(t, []string{"data_rimage_0"}, behind(), "nothing can be written to")
	look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, behind())
	look(true, "", "12.34", "", "")
	look(true, "", "100.00", "", "")
	require.Equal(t, []string{"data_rimage_0"}, behind(), "the newer copy was brought up to date from the old one")
	require.ErrorContains(t, e.checkCopies(ctx, lv), "copy data_rimage_0 of volume flexlvm/data was not written to after")
}
