package lvm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

var (
	striped = volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 128}
	raid1   = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
)

func made(h volume.Shape, size volume.Bytes) LogicalVolume {
	return LogicalVolume{Group: "flexlvm", Name: "pvc-9", Size: size, Shape: h, Tags: []string{"flexlvm"}}
}

func TestCreateInLayouts(t *testing.T) {
	c, s := client(t, map[string][]answer{"lvcreate": {{}}})
	require.NoError(t, c.Create(t.Context(), made(striped, 384*volume.MiB)))
	require.Equal(t, []string{"lvcreate --yes --wipesignatures y --zero y --type striped --stripes 3 --stripesize 128k --addtag flexlvm --size 402653184b --name pvc-9 -- flexlvm"}, s.ran)

	c, s = client(t, map[string][]answer{"pvs": {{out: golden(t, "devices.json")}}, "lvcreate": {{}}})
	require.NoError(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)))
	require.Equal(t, []string{
		`pvs --reportformat json --units b --nosuffix --config ` + reportConfig + ` --options ` + deviceFields + ` --select vg_name="flexlvm"`,
		"lvcreate --yes --wipesignatures y --zero y --type raid1 --mirrors 1 --addtag flexlvm --size 104857600b --name pvc-9 -- flexlvm /dev/mapper/b /dev/mapper/c",
	}, s.ran, "the two devices with the most room")
}

// The group has enough room in total, but not on enough devices.
func TestCreateWithoutEnoughDevices(t *testing.T) {
	group, none, devices := answer{out: golden(t, "groups.json")}, answer{out: golden(t, "no-volumes.json")}, answer{out: golden(t, "devices.json")}
	for name, tt := range map[string]struct {
		lv   LogicalVolume
		text string
	}{
		"striped": {made(striped, 384*volume.MiB), "a volume striped over 3 devices needs 134217728 bytes (128 MiB) on each of 3 devices of flexlvm, and 2 of 3 have that" +
			" (free: /dev/mapper/b 300 MiB, /dev/mapper/c 300 MiB, /dev/mapper/a 44 MiB); add devices with `vgextend --metadatasize 16m`, or use a class with fewer stripes"},
		"raid1": {made(raid1, 300*volume.MiB), "a volume in 2 copies needs 318767104 bytes (304 MiB) on each of 2 devices of flexlvm, and 0 of 3 have that"},
		"raid1 of four": {made(volume.Shape{Layout: volume.Raid1, Mirrors: 3}, 4*volume.MiB), "a volume in 4 copies needs 8388608 bytes (8 MiB) on each of 4 devices of flexlvm, and 3 of 3 have that" +
			" (free: /dev/mapper/b 300 MiB, /dev/mapper/c 300 MiB, /dev/mapper/a 44 MiB); add devices with `vgextend --metadatasize 16m`, or use a class with fewer mirrors"},
	} {
		answers := map[string][]answer{"pvs": {devices, devices}, "lvcreate": {{err: failed}}, "vgs": {group, group}, "lvs": {none}}
		c, _ := client(t, answers)
		err := c.Create(t.Context(), tt.lv)
		require.ErrorIs(t, err, ErrNoSpace, name)
		require.ErrorContains(t, err, tt.text, name)
	}

	// If the whole group is too small, the error is that of a linear volume.
	small := answer{out: strings.ReplaceAll(group.out, "2327838720", "4194304")}
	c, _ := client(t, map[string][]answer{"pvs": {devices}, "lvcreate": {{err: failed}}, "vgs": {small, small}, "lvs": {none}})
	require.ErrorContains(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)), "flexlvm has 4194304 bytes free (4 MiB) of 3200253952 and 218103808 are needed (208 MiB)")

	lacking := answer{out: strings.ReplaceAll(group.out, `"vg_missing_pv_count":"0"`, `"vg_missing_pv_count":"1"`)}
	c, _ = client(t, map[string][]answer{"lvcreate": {{err: failed}}, "vgs": {lacking, lacking}, "lvs": {none}})
	err := c.Create(t.Context(), made(striped, 384*volume.MiB))
	require.ErrorContains(t, err, "lacks 1 of its 1 device,")
	require.ErrorContains(t, err, "docs/disk-loss.md#the-disk-is-dead", "a repair by itself may make an old copy the only one")
	require.NotErrorIs(t, err, ErrNoSpace)

	away := answer{out: exportedGroup(t)}
	c, _ = client(t, map[string][]answer{"lvcreate": {{err: failed}}, "vgs": {away, away}, "lvs": {{err: failed}}})
	err = c.Create(t.Context(), made(volume.Shape{Layout: volume.Linear}, 384*volume.MiB))
	require.ErrorIs(t, err, ErrExported)
	require.ErrorContains(t, err, "`vgimport flexlvm`")

	// If there is enough room, the error is LVM's own.
	c, _ = client(t, map[string][]answer{"pvs": {devices, devices, devices, devices}, "lvcreate": {{err: failed}, {err: failed}}, "vgs": {group, group, group, group}, "lvs": {none, none}})
	require.ErrorIs(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)), failed)
	c, _ = client(t, map[string][]answer{"pvs": {{err: failed}}, "vgs": {group}, "lvs": {{out: golden(t, "volumes.json")}}})
	require.ErrorIs(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)), ErrExists, "whatever failed before")
	c, _ = client(t, map[string][]answer{"pvs": {{out: "{"}}})
	require.ErrorContains(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)), "read LVM's report")
}

// LVM creates a copy-on-write snapshot in two steps, and leaves the result of the first if the second
// fails. The error then contains LVM's, too.
func TestHalfASnapshotDoesNotHideLVMsReason(t *testing.T) {
	lv := made(volume.Shape{Layout: volume.Linear}, 8*volume.MiB)
	c, _ := client(t, map[string][]answer{"lvcreate": {{err: failed}}, "vgs": {{out: golden(t, "groups.json")}}, "lvs": {{out: golden(t, "volumes.json")}}})
	err := c.CreateCopyOnWriteSnapshot(t.Context(), made(volume.Shape{Layout: volume.Linear}, 8*volume.MiB), lv, 64*volume.KiB)
	require.ErrorIs(t, err, ErrExists)
	require.ErrorIs(t, err, failed)
}

// If room is freed after LVM has failed for lack of it and before the group is checked, the command is
// retried: the reason can no longer be determined, and a caller that waits for room would give up.
func TestRoomThatAppearsMeanwhile(t *testing.T) {
	group, none := answer{out: golden(t, "groups.json")}, answer{out: golden(t, "no-volumes.json")}
	devices, full := answer{out: golden(t, "devices.json")}, answer{out: strings.ReplaceAll(golden(t, "devices.json"), "314572800", "4194304")}
	linear := made(volume.Shape{Layout: volume.Linear}, 100*volume.MiB)
	c, s := client(t, map[string][]answer{"lvcreate": {{err: failed}, {}}, "vgs": {group, group}, "lvs": {none}})
	require.NoError(t, c.Create(t.Context(), linear))
	require.Empty(t, s.answers["lvcreate"], "tried once more")
	c, _ = client(t, map[string][]answer{"pvs": {full, devices, devices}, "lvcreate": {{}}, "vgs": {group, group}, "lvs": {none}})
	require.NoError(t, c.Create(t.Context(), made(raid1, 100*volume.MiB)))

	// Another volume takes the room.
	small := answer{out: strings.ReplaceAll(group.out, "2327838720", "4194304")}
	c, _ = client(t, map[string][]answer{"lvcreate": {{err: failed}, {err: failed}}, "vgs": {group, group, small, small}, "lvs": {none, none}})
	require.ErrorIs(t, c.Create(t.Context(), linear), ErrNoSpace)

	lv := made(volume.Shape{Layout: volume.Linear}, 384*volume.MiB)
	old := answer{out: only(t, "pvc-1")}
	c, s = client(t, map[string][]answer{"lvextend": {{err: failed}, {}}, "lvs": {old}, "vgs": {group}})
	require.NoError(t, c.Extend(t.Context(), lv, 400*volume.MiB))
	require.Empty(t, s.answers["lvextend"], "tried once more")
	c, _ = client(t, map[string][]answer{"lvextend": {{err: failed}, {err: failed}}, "lvs": {old, old}, "vgs": {group, small}})
	require.ErrorIs(t, c.Extend(t.Context(), lv, 600*volume.MiB), ErrNoSpace)
	c, _ = client(t, map[string][]answer{"lvextend": {{err: failed}, {err: failed}}, "lvs": {old, old}, "vgs": {group, group}})
	require.ErrorIs(t, c.Extend(t.Context(), lv, 400*volume.MiB), failed, "LVM has another reason")
}

// The copies of a raid1 volume grow on their devices, and on no other.
func TestExtendInLayouts(t *testing.T) {
	lv := made(striped, 384*volume.MiB)
	c, s := client(t, map[string][]answer{"lvextend": {{}}})
	require.NoError(t, c.Extend(t.Context(), lv, 400*volume.MiB))
	require.Equal(t, []string{"lvextend --yes --size 419430400b -- flexlvm/pvc-9"}, s.ran)

	lv.Shape = raid1
	copies, devices, group := answer{out: golden(t, "copies.json")}, answer{out: golden(t, "devices.json")}, answer{out: golden(t, "groups.json")}
	c, s = client(t, map[string][]answer{"lvs": {copies}, "lvextend": {{}}})
	require.NoError(t, c.Extend(t.Context(), lv, 400*volume.MiB))
	require.Equal(t, []string{
		`lvs --reportformat json --units b --nosuffix --config ` + reportConfig + ` --options lv_name,devices --all --select lv_parent="pvc-9" -- flexlvm`,
		"lvextend --yes --size 419430400b -- flexlvm/pvc-9 /dev/mapper/b /dev/mapper/c",
	}, s.ran)

	c, _ = client(t, map[string][]answer{"lvs": {copies, {out: only(t, "pvc-1")}}, "lvextend": {{err: failed}}, "vgs": {group}, "pvs": {devices}})
	err := c.Extend(t.Context(), lv, 700*volume.MiB)
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "needs 331350016 bytes (316 MiB) on each of 2 devices of flexlvm, and 0 of 2 have that"+
		" (free: /dev/mapper/b 300 MiB, /dev/mapper/c 300 MiB); its copies grow only where they lie: make room there, with `pvmove` for one")

	tangled := strings.ReplaceAll(copies.out, "/dev/mapper/c", "/dev/mapper/b")
	for name, answers := range map[string]map[string][]answer{
		"copies on one device": {"lvs": {{out: tangled}}},
		"lvs failed":           {"lvs": {{err: failed}, {out: only(t, "pvc-1")}, {err: failed}, {out: only(t, "pvc-1")}}, "vgs": {group, group}, "pvs": {devices, devices}},
		"not JSON":             {"lvs": {{out: "{"}}},
	} {
		c, _ := client(t, answers)
		require.Error(t, c.Extend(t.Context(), lv, 400*volume.MiB), name)
	}
}
