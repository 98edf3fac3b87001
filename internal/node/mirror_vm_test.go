//go:build vm

package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A mirrored is a raid1 volume on the two devices of a frail group. Its copies are in sync at first.
type mirrored struct {
	frail
	spec   volume.Spec
	uptime time.Duration
}

func newMirrored(t *testing.T) *mirrored {
	t.Helper()
	m := newMachine(t)
	v := &mirrored{frail: newFrail(m), uptime: time.Hour}
	m.uptime = func() time.Duration { return v.uptime }
	v.spec = specOf("data", 64*volume.MiB)
	v.spec.Group, v.spec.Layout = v.group, volume.Raid1
	v.write("first")
	return v
}

// write mounts the volume, writes a file, waits until the present copies are in sync, and unmounts the volume.
func (v *mirrored) write(file string) {
	v.t.Helper()
	target := v.mount(v.spec, "a")
	v.shell("echo %[2]s >%[1]s/%[2]s && sync %[1]s/%[2]s", target, file)
	require.Eventually(v.t, func() bool { return v.volume1(v.t).SyncPercent == "100.00" }, 5*time.Minute, time.Second)
	v.unmount(target)
}

// boot stands in for a reboot: it deactivates the volume, and leaves only the devices that are present.
func (v *mirrored) boot(present ...bool) {
	v.t.Helper()
	v.shell("vgchange -an %s", v.group)
	for i, there := range present {
		if v.fail(i); there {
			v.set(i, v.table(i))
		}
	}
}

func (v *mirrored) refused(says string) {
	v.t.Helper()
	err := v.tryMount(v.spec, v.target("a"))
	require.ErrorIs(v.t, err, lvm.ErrPartial)
	require.ErrorContains(v.t, err, says)
	require.NoFileExists(v.t, "/dev/mapper/"+volume.DeviceName(v.group, v.spec.Name))
}

// whole mounts the volume with both devices, requires the file in it, and waits until its note is gone.
func (v *mirrored) whole(file string) {
	v.t.Helper()
	target := v.mount(v.spec, "a")
	require.FileExists(v.t, filepath.Join(target, file))
	v.shell("lvchange --refresh %s/%s", v.group, v.spec.Name)
	require.Eventually(v.t, func() bool {
		_ = v.volume1(v.t)
		left, err := os.ReadDir(string(v.copyNotes))
		return err == nil && len(left) == 0
	}, 5*time.Minute, time.Second)
	v.unmount(target)
}

// Each of two boots finds only one disk, and not the same one: the second does not bring back the data from before
// the first. A linear volume whose own disk is present is not affected.
func TestDisksThatAreLateInTurns(t *testing.T) {
	v := newMirrored(t)
	v.shell("pvchange --allocatable n /dev/mapper/frail1")
	single := specOf("single", 64*volume.MiB)
	single.Group = v.group
	v.unmount(v.mount(single, "b"))
	v.shell("pvchange --allocatable y /dev/mapper/frail1")

	v.boot(true, false)
	v.uptime = time.Minute
	v.refused("may still appear after the boot")
	v.unmount(v.mount(single, "b"))
	v.uptime = bootGrace
	v.write("second")
	v.boot(false, true)
	for _, v.uptime = range []time.Duration{0, bootGrace} {
		v.refused("which lacks what was written after")
	}

	v.boot(true, true)
	v.uptime = 0
	v.whole("second")
	v.boot(false, true)
	v.uptime = bootGrace
	v.write("third") // the copies were in sync
	v.boot(true, false)
	v.refused("which lacks what was written after")
	v.shell("lvchange --activate y %s/%s", v.group, v.spec.Name) // as the host may do at boot
	seen := v.volume1(t)                                         // the daemon's inventory must not take the old copy for the new one
	require.False(t, seen.Degraded)
	require.True(t, seen.Outdated)
	require.Contains(t, seen.Problem, "is recorded as out of date")
	err := v.tryMount(v.spec, v.target("a"))
	require.ErrorContains(t, err, "is recorded as out of date")
	v.boot(true, true)
	v.refused("has been active without the others since") // the kernel takes the old copy for the newest
	v.boot(false, true)
	target := v.mount(v.spec, "a")
	require.FileExists(t, filepath.Join(target, "third"))
	v.unmount(target)
	v.boot(true, true)
}

// A disk fails in use, and the next boot finds only that disk.
func TestDiskThatHadFailedIsAlone(t *testing.T) {
	v := newMirrored(t)
	target := v.mount(v.spec, "a")
	v.fail(0)
	v.shell("echo more >%[1]s/more && sync %[1]s/more", target)
	require.True(t, v.volume1(t).Degraded) // the daemon's inventory
	lv, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(t, err)
	v.unmount(target)
	v.boot(true, false)
	v.refused("which lacks what was written after")
	v.boot(true, true)
	v.whole("more")

	v.boot(true, false)
	v.write("lonely")
	v.boot(false, true)
	v.refused("which lacks what was written after")
	v.shell("rm %s", v.copyNotes.file(lv.UUID)) // a person accepts the old copy
	target = v.mount(v.spec, "a")
	require.FileExists(t, target+"/more")
	require.NoFileExists(t, target+"/lonely")
	v.unmount(target)
	v.boot(true, true)
}

// A disk fails and answers again, and nobody brings its copy up to date. Then the other disk dies and is taken out of
// the group, upon which the kernel runs on the old copy, without the volume having been inactive.
func TestGroupIsReducedToAnOldCopy(t *testing.T) {
	v := newMirrored(t)
	target := v.mount(v.spec, "a")
	v.fail(0)
	v.shell("echo more >%[1]s/more && sync %[1]s/more", target)
	require.True(t, v.volume1(t).Degraded)
	lv, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(t, err)
	v.unmount(target)
	v.set(0, v.table(0))
	v.fail(1)
	v.shell("vgreduce --removemissing --force %s", v.group)
	refused := func(when string) {
		t.Log(when, "\n", shellOut("lvs -a -o lv_name,lv_uuid,lv_attr,segtype,lv_health_status,sync_percent,devices frail; dmsetup status frail-data"))
		seen := v.volume1(t)
		require.False(t, seen.Degraded, "%s: %s", when, seen.Problem)
		require.NotContains(t, seen.Problem, "--refresh", when)
		err = v.tryMount(v.spec, target)
		require.ErrorIs(t, err, lvm.ErrPartial, when)
		require.Equal(t, seen.Problem, err.Error())
	}
	refused("reduced")
	v.shell("lvchange --refresh %s/%s", v.group, v.spec.Name)
	refused("refreshed")
	for range 2 {
		v.shell("lvchange --activate n %[1]s/%[2]s && lvchange --activate y %[1]s/%[2]s", v.group, v.spec.Name)
		refused("activated again")
	}
	v.set(1, v.table(1))
	v.shell("wipefs --all /dev/mapper/frail1") // another disk, a blank one
	v.shell("vgextend --metadatasize 16m %s /dev/mapper/frail1", v.group)
	v.shell("lvconvert --repair --yes %s/%s", v.group, v.spec.Name)
	require.Eventually(t, func() bool { return v.volume1(t).SyncPercent == "100.00" }, 5*time.Minute, time.Second)
	refused("repaired from the old copy")

	v.shell("rm %s", v.copyNotes.file(lv.UUID)) // a person accepts the old copy
	v.mount(v.spec, "a")
	require.FileExists(t, target+"/first")
	require.NoFileExists(t, target+"/more")
	v.unmount(target)
	require.Empty(t, v.volume1(t).Problem)
}

// A snapshot of a mirror is not restored while the mirror runs on an old copy, with which the snapshot shares data.
func TestSnapshotOfAMirrorOnAnOldCopyIsNotRestored(t *testing.T) {
	v := newMirrored(t)
	target := v.mount(v.spec, "a")
	v.shell("pvchange --allocatable n /dev/mapper/frail1")
	snap := v.storeOf(v.spec, "snap", 0)
	snap.Group = v.group
	v.snapshotNow(snap)
	v.shell("pvchange --allocatable y /dev/mapper/frail1")
	v.fail(0)
	v.shell("echo more >%[1]s/more && sync %[1]s/more || true", target)
	v.volume1(t)
	v.unmount(target)
	v.boot(true, false)
	v.shell("lvchange --activate y %s/%s", v.group, v.spec.Name) // as the host may do at boot
	c := v.copyOf(snap, "restored", volume.Shape{Layout: volume.Linear}, v.spec.Size)
	c.Group = v.group
	require.ErrorContains(t, v.CreateCloneAhead(v.ctx(), c), "that snapshot was found to be invalid")
	require.NoError(t, os.RemoveAll(string(v.invalidNotes)), "as if nobody had seen it")
	require.ErrorContains(t, v.CreateCloneAhead(v.ctx(), c), "lacks what was written after")
	v.boot(true, true)
}
