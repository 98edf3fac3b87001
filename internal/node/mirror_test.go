package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	health [2]string // of each copy, as LVM reports it; removed: its device was removed from the group
	uuids  [2]string // of each copy; empty: copy-0 and copy-1
	whole  string    // the volume's health
	sync   string    // the volume's
	active string    // lv_active of the volume
	broken bool      // LVM cannot activate anything
	ran    []string  // the activation modes of the lvchange commands
}

func (m *fakeMirror) run(argv ...string) (string, error) {
	switch argv[0] {
	case "lvchange":
		complete := slices.Contains(argv, "complete")
		m.ran = append(m.ran, map[bool]string{true: "complete", false: "degraded"}[complete])
		// To LVM, a volume is complete although the device of a copy was removed from the group.
		if m.broken || complete && slices.Contains(m.health[:], "partial") || m.health == [2]string{"partial", "partial"} {
			return "", exec.CodeExitError{Code: 5, Err: errors.New("Refusing activation of partial LV")}
		}
		return "", nil
	case "lvs":
		if strings.Contains(strings.Join(argv, " "), `lv_name="data"`) {
			return strings.NewReplacer("ACTIVE", m.active, "HEALTH", m.whole, "SYNC", m.sync).Replace(`{"report":[{"lv":[{"vg_name":"flexlvm","vg_uuid":"group-uuid","vg_extent_size":"4194304","lv_name":"data","lv_uuid":"lv-1","lv_size":"4194304","lv_tags":"","lv_active":"ACTIVE","lv_attr":"owi-----p-","lv_device_open":"","lv_time":"1795226345","lv_health_status":"HEALTH","sync_percent":"SYNC","raid_sync_action":"","origin":"","snap_percent":"","lv_snapshot_invalid":"","pool_lv":"","data_percent":"","metadata_percent":"","lv_metadata_size":"","lv_when_full":"","segtype":"raid1","stripes":"2","stripe_size":"0","thin_count":"","chunk_size":"0","zero":""}]}]}`), nil
		}
		var rows []string
		for i, health := range m.health {
			segtype := "linear"
			if health == "removed" {
				health, segtype = "", "error"
			}
			rows = append(rows, fmt.Sprintf(`{"vg_name":"flexlvm","lv_name":"[data_rimage_%d]","lv_uuid":%q,"lv_parent":"data","lv_health_status":%q,"segtype":%q}`, i, cmp.Or(m.uuids[i], fmt.Sprintf("copy-%d", i)), health, segtype))
		}
		return `{"report":[{"lv":[` + strings.Join(rows, ",") + `]}]}`, nil
	case "pvs":
		return `{"report":[{"pv":[{"pv_name":"/dev/sda","pv_uuid":"pv-there","pv_missing":"","vg_name":"flexlvm","vg_uuid":"group","vg_tags":""},{"pv_name":"[unknown]","pv_uuid":"pv-away","pv_missing":"missing","vg_name":"flexlvm","vg_uuid":"group","vg_tags":""},{"pv_name":"[unknown]","pv_uuid":"pv-other","pv_missing":"missing","vg_name":"tank","vg_uuid":"other","vg_tags":""}]}]}`, nil
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
	require.False(t, e.copyNotes.mayExist(lv.UUID))

	uptime := bootGrace - 61*time.Second
	e.uptime = func() time.Duration { return uptime }
	m.ran, m.health = nil, [2]string{"", "partial"}
	err := e.activate(ctx, lv)
	require.ErrorIs(t, err, lvm.ErrPartial)
	require.ErrorContains(t, err, "pv-away")
	require.ErrorContains(t, err, "`vgextend --restoremissing flexlvm DEVICE`")
	require.ErrorContains(t, err, "from 2026-05-04T03:04:00Z on it is activated without them")
	require.Equal(t, []string{"complete"}, m.ran)
	require.False(t, e.copyNotes.mayExist(lv.UUID))

	uptime = bootGrace
	m.ran = nil
	require.NoError(t, e.activate(ctx, lv))
	require.Equal(t, []string{"complete", "degraded"}, m.ran)
	note, err := e.copyNotes.read(lv.UUID)
	require.NoError(t, err)
	require.Equal(t, copyNote{Volume: "flexlvm/data", Since: e.now(), Behind: map[string]string{"copy-1": "data_rimage_1"}, UpToDate: map[string]string{"copy-0": "data_rimage_0"}}, note)
	require.NoError(t, e.checkCopies(ctx, lv))
	require.NoError(t, e.activate(ctx, lv), "again, as after another boot")

	m.ran, m.health = nil, [2]string{"partial", ""}
	err = e.activate(ctx, lv)
	require.ErrorIs(t, err, lvm.ErrPartial)
	for _, says := range []string{"only copy data_rimage_1 of volume flexlvm/data can be used", "lacks what was written after 2026-05-04T03:02:01Z", "pv-away", "remove " + e.copyNotes.file(lv.UUID)} {
		require.ErrorContains(t, err, says)
	}
	require.Empty(t, m.ran)
	lv.Active, lv.Sync = true, "100.00"
	require.ErrorContains(t, e.checkCopies(ctx, lv), "only copy data_rimage_1 of volume flexlvm/data can be used", "the host has activated it")
	m.health = [2]string{"refresh needed", ""}
	require.ErrorContains(t, e.checkCopies(ctx, lv), "has been active without the others since", "its disk was taken out of the group")

	lv.Active, lv.Sync = false, ""
	m.ran, m.health = nil, [2]string{}
	require.ErrorContains(t, e.activate(ctx, lv), "copy data_rimage_1 of volume flexlvm/data is recorded as out of date since 2026-05-04T03:02:01Z, and has been active without the others since")
	require.ErrorContains(t, e.checkCopies(ctx, lv), "has been active without the others since")
	require.Empty(t, m.ran, "the kernel could overwrite the newest copy")
	m.health = [2]string{"", "partial"}
	require.NoError(t, e.activate(ctx, lv), "without the old copy")
	require.NoError(t, e.checkCopies(ctx, lv))
	m.health = [2]string{"partial", ""}
	require.NoError(t, e.copyNotes.remove(lv.UUID), "a person accepts the old one")
	require.NoError(t, e.activate(ctx, lv))
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
	require.Empty(t, m.ran, "not before it is on record")

	e, m = mirrorEngine(t)
	m.health = [2]string{"partial", "partial"}
	require.ErrorContains(t, e.activate(ctx, lv), "Refusing activation")
	require.ErrorContains(t, e.checkNote(ctx, lv, []lvm.Copy{{Name: "data_rimage_0", Missing: true}}), "bring the devices back (if `pvs")
	m.health, m.broken = [2]string{}, true
	require.ErrorContains(t, e.activate(ctx, lv), "Refusing activation")
	require.Equal(t, []string{"complete", "complete"}, m.ran)

	m.ran, m.broken = nil, false
	lv.Shape = volume.Shape{Layout: volume.Linear}
	e.uptime = func() time.Duration { return 0 }
	require.NoError(t, e.activate(ctx, lv))
	require.Equal(t, []string{"degraded"}, m.ran, "LVM's default, for all other layouts")

	m.ran, m.health = nil, [2]string{"", "partial"}
	snapshot := lvm.LogicalVolume{Group: "flexlvm", Name: "snap", UUID: "lv-2", Origin: "data", Shape: volume.Shape{Layout: volume.Linear}}
	require.ErrorContains(t, e.activate(ctx, snapshot), "may still appear after the boot", "LVM would activate its source with it")
	require.Equal(t, []string{"complete"}, m.ran)
}

// A watchedMirror is a mirror that the daemon's inventory looks at.
type watchedMirror struct {
	*Engine
	*fakeMirror
	t  *testing.T
	lv lvm.LogicalVolume
}

func watchMirror(t *testing.T) *watchedMirror {
	e, m := mirrorEngine(t)
	return &watchedMirror{e, m, t, mirrorLV()}
}

// look takes an inventory of the volume with that health and sync, whose copies have these.
func (w *watchedMirror) look(active bool, health, sync string, copies ...string) {
	w.lv.Active, w.lv.Health, w.lv.Sync = active, health, sync
	w.health, w.whole, w.sync, w.active = [2]string(copies), health, sync, map[bool]string{true: "active"}[active]
	w.noteCopies(w.t.Context(), []lvm.LogicalVolume{{Group: "flexlvm", Name: "other"}, w.lv}, w.now())
}

func (w *watchedMirror) copies() []lvm.Copy {
	copies, err := w.copiesOf(w.t.Context(), w.lv)
	require.NoError(w.t, err)
	return copies
}

func (w *watchedMirror) note() copyNote {
	note, err := w.copyNotes.read(w.lv.UUID)
	require.NoError(w.t, err)
	return note
}

func (w *watchedMirror) behind() []string {
	return slices.Sorted(maps.Values(w.note().Behind))
}

// The daemon's inventory notes the copies that fall behind while a volume is in use, and removes the note when the
// volume is complete and in sync.
func TestCopiesAreNoted(t *testing.T) {
	w := watchMirror(t)
	w.look(false, "partial", "", "", "partial")
	require.Empty(t, w.behind(), "nobody writes to an inactive volume")
	w.look(true, "partial", "100.00", "partial", "")
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
	w.look(true, "refresh needed", "100.00", "refresh needed", "")
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
	for _, sync := range []string{"", "12.34"} {
		w.look(true, "", sync, "", "")
		require.Equal(t, []string{"data_rimage_0"}, w.behind(), "it is not in sync yet")
	}
	w.look(true, "mismatches exist", "100.00", "", "")
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
	w.noteCopies(t.Context(), []lvm.LogicalVolume{{Group: w.lv.Group, Name: w.lv.Name, UUID: w.lv.UUID, Shape: w.lv.Shape, Active: true, Sync: "100.00"}}, w.now().Add(-time.Second))
	require.True(t, w.copyNotes.mayExist(w.lv.UUID), "it is newer than the report")
	w.look(true, "", "100.00", "", "")
	require.False(t, w.copyNotes.mayExist(w.lv.UUID))
	w.look(true, "partial", "100.00", "", "partial")
	require.Equal(t, []string{"data_rimage_1"}, w.behind(), "the first was brought up to date before the second failed")
}

// A copy came back after the report of the volume, which still calls the other one in sync with itself.
func TestCopyThatCameBackAfterTheReport(t *testing.T) {
	w := watchMirror(t)
	w.look(true, "partial", "100.00", "partial", "")
	w.health, w.whole, w.sync = [2]string{}, "", "12.34"
	w.noteCopies(t.Context(), []lvm.LogicalVolume{w.lv}, w.now())
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
}

// A copy has fallen behind and answers again. Then the disk of the other dies and is taken out of the group, upon
// which the kernel goes over to the first copy, in the same activation. That does not make it up to date.
func TestMirrorThatGoesOverToAnOldCopy(t *testing.T) {
	w := watchMirror(t)
	w.look(true, "partial", "100.00", "partial", "")
	w.look(true, "partial", "12.34", "", "partial")
	require.False(t, w.note().Diverged, "the kernel does not run on a part of a copy")
	w.look(true, "refresh needed", "100.00", "partial", "refresh needed")
	require.False(t, w.note().Diverged, "nothing can be written to")
	w.look(true, "partial", "100.00", "", "partial")
	require.Equal(t, []string{"data_rimage_0"}, w.behind())
	require.Equal(t, map[string]string{"copy-1": "data_rimage_1"}, w.note().UpToDate)
	require.ErrorContains(t, w.checkCopies(t.Context(), w.lv), "copy data_rimage_0 of volume flexlvm/data is recorded as out of date")
	w.look(true, "", "12.34", "", "")
	w.look(true, "", "100.00", "", "")
	require.Equal(t, []string{"data_rimage_0"}, w.behind(), "the newer copy may have been overwritten with the old one")
	require.ErrorContains(t, w.checkCopies(t.Context(), w.lv), "has been active without the others since")
}

// A repair from an old copy makes the volume complete, and not up to date.
func TestMirrorRepairedFromAnOldCopy(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.look(true, "partial", "100.00", "partial", "")
	w.uuids[1] = "copy-2"
	w.look(true, "", "12.34", "", "")
	w.look(true, "", "100.00", "", "")
	require.Equal(t, map[string]string{"copy-0": "data_rimage_0"}, w.note().Behind)
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "copy data_rimage_0 of volume flexlvm/data is recorded as out of date")
	w.uuids = [2]string{"copy-3", "copy-2"} // and the old copy is replaced as well
	w.look(true, "", "100.00", "", "")
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "only copy data_rimage_0, data_rimage_1 of volume flexlvm/data can be used, which is unknown to this node: it was made after 2026-05-04T03:02:01Z, perhaps from a copy that was out of date by then; no copy that is known to be up to date is part of the volume any more: read docs/disk-loss.md#a-copy-that-is-out-of-date")
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "remove "+w.copyNotes.file(w.lv.UUID))
	require.NoError(t, w.copyNotes.remove(w.lv.UUID), "a person accepts it")
	w.look(true, "", "100.00", "", "")
	require.NoError(t, w.checkCopies(ctx, w.lv))
}

// A repair from a copy that is up to date, while the old one, which has been active alone, is away.
func TestMirrorRepairedFromTheNewestCopy(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.look(true, "partial", "100.00", "", "partial")
	w.look(true, "partial", "100.00", "partial", "")
	require.True(t, w.note().Diverged)
	text, err := os.ReadFile(w.copyNotes.file(w.lv.UUID))
	require.NoError(t, err)
	require.Contains(t, string(text), `"stale":true`, "the runbooks quote it")
	w.look(true, "partial", "100.00", "", "partial")
	require.NoError(t, w.checkCopies(ctx, w.lv))
	w.uuids[1] = "copy-2"
	w.look(true, "", "12.34", "", "")
	require.NoError(t, w.checkCopies(ctx, w.lv))
	w.look(true, "partial", "100.00", "partial", "")
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "only copy data_rimage_1", "it was not seen to be in sync")
	w.look(true, "", "100.00", "", "")
	require.False(t, w.copyNotes.mayExist(w.lv.UUID))
}

// A snapshot of a mirror shares its data, so it is not copied while the mirror runs on an old copy.
func TestSnapshotOfAMirrorOnAnOldCopy(t *testing.T) {
	w := watchMirror(t)
	snapshot := lvm.LogicalVolume{Group: "flexlvm", Name: "snap", UUID: "lv-2", Origin: "data", Shape: volume.Shape{Layout: volume.Linear}}
	require.NoError(t, w.checkCopies(t.Context(), snapshot))
	w.look(true, "partial", "100.00", "partial", "")
	require.NoError(t, w.checkCopies(t.Context(), snapshot))
	w.health = [2]string{"", "partial"}
	require.ErrorContains(t, w.checkCopies(t.Context(), snapshot), "only copy data_rimage_0 of volume flexlvm/data can be used")
}
