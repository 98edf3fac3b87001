//go:build vm

package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A dead disk of a mirror is replaced. LVM reports no problem while the new copy is built, but the mirror is lost if the
// disk of the other copy fails meanwhile.
func TestMirrorBeingRebuiltIsDegraded(t *testing.T) {
	v := newMirrored(t)
	v.shell("lvchange --maxrecoveryrate 1m %s/%s", v.group, v.spec.Name)
	target := v.mount(v.spec, "a")
	v.fail(1)
	v.shell("echo more >%[1]s/more && sync %[1]s/more", target)
	require.True(t, v.volume1(t).Degraded)
	v.shell("vgreduce --removemissing --force %s", v.group)
	v.set(1, v.table(1))
	v.shell("wipefs --all /dev/mapper/frail1 && vgextend --metadatasize 16m %s /dev/mapper/frail1", v.group)
	v.shell("lvconvert --repair --yes %s/%s", v.group, v.spec.Name)
	lv, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(t, err)
	require.Empty(t, lv.Health, "LVM reports this by now")
	require.NotEqual(t, inSyncPercent, lv.Sync, "it was too fast for this test")
	seen := v.volume1(t)
	require.True(t, seen.Degraded)
	require.Contains(t, seen.Problem, "a copy is not complete yet ("+seen.SyncPercent+"% in sync)")

	v.shell("lvchange --maxrecoveryrate 0 %s/%s", v.group, v.spec.Name)
	require.Eventually(t, func() bool {
		seen := v.volume1(t)
		return seen.Problem == "" && seen.SyncPercent == inSyncPercent && !v.copyNotes.mayExist(seen.UUID)
	}, 2*time.Minute, time.Second)
	require.FileExists(t, target+"/more")
	v.unmount(target)
}

// A person takes a copy out of a mirror, and makes another one. The node has no note of that.
func TestMirrorWithACopyAddedByHandIsDegraded(t *testing.T) {
	v := newMirrored(t)
	path := string(v.group) + "/" + string(v.spec.Name)
	target := v.mount(v.spec, "a")
	const limit = "/proc/sys/dev/raid/speed_limit_max"
	before := shellOut("cat " + limit)
	t.Cleanup(func() { shellOut("echo " + before + " >" + limit) })
	v.shell("echo 1000 >%s", limit)
	v.shell("lvconvert --yes --mirrors 0 %[1]s && lvconvert --yes --type raid1 --mirrors 1 %[1]s", path)
	seen := v.volume1(t)
	require.False(t, v.copyNotes.mayExist(seen.UUID))
	require.NotEqual(t, inSyncPercent, seen.SyncPercent, "it was too fast for this test")
	require.True(t, seen.Degraded)
	require.Contains(t, seen.Problem, "a copy is not complete yet")
	v.shell("echo %s >%s", before, limit)
	require.Eventually(t, func() bool {
		seen := v.volume1(t)
		return seen.Problem == "" && seen.SyncPercent == inSyncPercent
	}, 2*time.Minute, time.Second)
	v.unmount(target)
}

// The copies of a mirror differ. LVM says so after a comparison, and its repair writes the first copy over the other.
func TestMirrorWhoseCopiesDiffer(t *testing.T) {
	v := newMirrored(t)
	path := string(v.group) + "/" + string(v.spec.Name)
	v.shell("lvchange --activate y %s", path)
	sum := func(image string) string {
		return shellOut("dd if=/dev/mapper/" + volume.DeviceName(v.group, v.spec.Name+volume.Name(image)) + " bs=1M iflag=direct status=none | sha256sum")
	}
	first := sum("_rimage_0")
	v.shell("dd if=/dev/urandom of=/dev/mapper/%s bs=1M seek=40 count=1 oflag=direct conv=fsync,notrunc status=none", volume.DeviceName(v.group, v.spec.Name+"_rimage_1"))
	require.NotEqual(t, first, sum("_rimage_1"))
	scrub := func(action string) {
		t.Helper()
		v.shell("lvchange --syncaction %s %s", action, path)
		idle := func() string { return shellOut("lvs --noheadings -o raid_sync_action " + path) }
		require.Eventually(t, func() bool { return idle() == "idle" }, 5*time.Minute, time.Second, "%s", idle())
	}
	scrub("check")
	seen := v.volume1(t)
	require.True(t, seen.Degraded)
	require.Contains(t, seen.Problem, "its copies were found to differ")

	scrub("repair")
	scrub("check")
	require.Empty(t, v.volume1(t).Problem)
	require.Equal(t, first, sum("_rimage_0"))
	require.Equal(t, first, sum("_rimage_1"))
}
