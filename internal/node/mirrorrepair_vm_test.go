//go:build vm

package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// oldCopy lets the first copy fall behind in use, and the disk of the second one fail after the first one's is back.
func (v *mirrored) oldCopy() (target, note string) {
	v.t.Helper()
	target = v.mount(v.spec, "a")
	v.fail(0)
	v.shell("echo more >%[1]s/more && sync %[1]s/more", target)
	require.True(v.t, v.volume1(v.t).Degraded)
	lv, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(v.t, err)
	v.unmount(target)
	v.set(0, v.table(0))
	v.fail(1)
	return target, v.copyNotes.file(lv.UUID)
}

// A person makes a mirror linear, whose old copy is all that is left, before the daemon looks again. The old data is not
// used silently, neither in the linear volume nor when it is raid1 again.
func TestMirrorIsMadeLinearFromAnOldCopy(t *testing.T) {
	v := newMirrored(t)
	target, note := v.oldCopy()
	v.shell("vgreduce --removemissing --force %[1]s && lvconvert --yes --mirrors 0 %[1]s/%[2]s", v.group, v.spec.Name)
	refused := func(says string, why error) {
		err := v.tryMount(v.spec, target)
		require.ErrorIs(t, err, why)
		require.ErrorContains(t, err, says)
		require.Equal(t, v.volume1(t).Problem, err.Error())
	}
	linear, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Linear, linear.Shape.Layout)
	refused("is no longer raid1", ErrConverted)
	v.shell("lvchange --activate n %s/%s", v.group, v.spec.Name)
	refused("is no longer raid1", ErrConverted)
	v.set(1, v.table(1))
	v.shell("wipefs --all /dev/mapper/frail1 && vgextend --metadatasize 16m %s /dev/mapper/frail1", v.group)
	v.shell("lvchange --activate y %[1]s/%[2]s && lvconvert --yes --type raid1 --mirrors 1 %[1]s/%[2]s", v.group, v.spec.Name)
	require.Eventually(t, func() bool { return v.volume1(t).SyncPercent == "100.00" }, 5*time.Minute, time.Second)
	refused("which is unknown to this node", lvm.ErrPartial)
	v.shell("rm %s", note) // a person accepts it
	v.mount(v.spec, "a")
	require.FileExists(t, target+"/first")
	require.NoFileExists(t, target+"/more")
	v.unmount(target)
}

// The disk with the newer copy was removed from the group while the volume was inactive, so that LVM calls the volume
// complete. It is not activated from the old copy.
func TestInactiveMirrorIsReducedToAnOldCopy(t *testing.T) {
	v := newMirrored(t)
	v.oldCopy()
	v.shell("vgchange --activate n %[1]s && vgreduce --removemissing --force %[1]s", v.group)
	v.refused("which lacks what was written after")
	v.refused(newerGone)
	v.set(1, v.table(1))
}

// The disk with the newer copy was removed from the group and is intact: it is put back as docs/disk-loss.md describes,
// and the volume has the newer data.
func TestRemovedDiskIsPutBack(t *testing.T) {
	v := newMirrored(t)
	target, _ := v.oldCopy()
	v.shell("vgreduce --removemissing --force %s", v.group)
	v.shell("lvchange --activate n %[1]s/%[2]s && lvchange --activate y %[1]s/%[2]s", v.group, v.spec.Name)
	for range 2 {
		err := v.tryMount(v.spec, target)
		require.ErrorContains(t, err, newerGone)
		require.NotContains(t, err.Error(), "take its device away")
		require.NotContains(t, err.Error(), "bring them back")
	}
	v.shell("vgchange --activate n %s", v.group)
	v.set(1, v.table(1))
	archive := v.shell("grep -lr 'before.*vgreduce --removemissing' /etc/lvm/archive | sort | tail -n 1")
	require.NotContains(t, v.tagsSince(archive), ">")
	v.shell("lvchange --config backup{archive=0} --addtag since %s/%s", v.group, v.spec.Name)
	require.Contains(t, v.tagsSince(archive), ">", "it is not in the archive")
	v.shell("lvchange --config backup{archive=0} --deltag since %s/%s", v.group, v.spec.Name)
	v.shell("sed 's/\"MISSING\"//' %s >%s/restore.vg", archive, v.stateDir)
	for _, how := range []string{"--test", ""} {
		v.shell("vgcfgrestore %s --file %s/restore.vg %s", how, v.stateDir, v.group)
	}
	require.NotContains(t, shellOut("pvs --noheadings -o pv_missing"), "missing")
	v.refused("is recorded as out of date")
	v.boot(false, true)
	v.mount(v.spec, "a")
	require.FileExists(t, target+"/more")
	v.unmount(target)
	v.boot(true, true)
}

// tagsSince compares the tags in an archived file with those that the group has now, as docs/disk-loss.md does.
func (v *mirrored) tagsSince(archive string) string {
	v.t.Helper()
	v.shell("vgcfgbackup --file %s/now.vg %s", v.stateDir, v.group)
	return v.shell("for f in %[1]s %[2]s/now.vg; do grep 'tags = ' $f >%[2]s/$(basename $f).tags; done; diff %[2]s/$(basename %[1]s).tags %[2]s/now.vg.tags || true", archive, v.stateDir)
}

// LVM writes the group's metadata while a disk is away, and does not use the disk when it is back.
func TestDiskThatIsBackAndMarkedAsMissing(t *testing.T) {
	v := newMirrored(t)
	target := v.mount(v.spec, "a")
	v.fail(1)
	v.shell("echo more >%[1]s/more && sync %[1]s/more", target)
	v.shell("lvchange --addtag written %s/%s", v.group, v.spec.Name)
	v.set(1, v.table(1))
	v.shell("lvchange --refresh %s/%s || true", v.group, v.spec.Name)
	require.Contains(t, shellOut("pvs --noheadings -o +pv_missing /dev/mapper/frail1"), "missing")
	seen := v.volume1(t)
	require.True(t, seen.Degraded)
	require.Contains(t, seen.Problem, "vgextend --restoremissing frail DEVICE")
	v.shell("vgextend --restoremissing %[1]s /dev/mapper/frail1 && lvchange --refresh %[1]s/%[2]s", v.group, v.spec.Name)
	require.Eventually(t, func() bool {
		seen := v.volume1(t)
		left, err := os.ReadDir(string(v.copyNotes))
		return seen.Problem == "" && seen.SyncPercent == "100.00" && err == nil && len(left) == 0
	}, 5*time.Minute, time.Second)
	v.unmount(target)
	v.boot(false, true)
	v.mount(v.spec, "a")
	require.FileExists(t, target+"/more")
	v.unmount(target)
	v.boot(true, true)
}

// The store of a snapshot is on a dead disk, on which its source has no copy, or only one of two. docs/disk-loss.md removes
// the snapshot first, because vgreduce would remove the source with it.
func TestDeadDiskHoldsASnapshot(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	source := func(name string, layout volume.Layout, forbidden string) string {
		s := specOf(name, 64*volume.MiB)
		s.Group, s.Layout = f.group, layout
		m.shell("%s", forbidden)
		target := m.mount(s, name)
		m.shell("echo kept >%[1]s/kept && sync %[1]s/kept; pvchange --allocatable y /dev/mapper/frail1; pvchange --allocatable n /dev/mapper/frail0", target)
		snap := m.storeOf(s, "snap-of-"+name, 0)
		snap.Group = f.group
		m.snapshotNow(snap)
		m.shell("pvchange --allocatable y /dev/mapper/frail0")
		return target
	}
	linear := source("linear", volume.Linear, "pvchange --allocatable n /dev/mapper/frail1")
	mirror := source("mirror", volume.Raid1, "true")
	require.Eventually(t, func() bool { return shellOut("lvs --noheadings -o sync_percent frail/mirror") == "100.00" }, 5*time.Minute, time.Second)
	f.fail(1)
	partial := func() []string {
		return strings.Fields(shellOut("lvs --noheadings -o lv_name -S 'vg_name=frail && lv_health_status=partial'"))
	}
	require.Subset(t, partial(), []string{"linear", "mirror"}, "LVM calls the intact volume partial as well")
	require.Contains(t, m.shell("vgreduce --removemissing --force --test frail || true"), "Removing partial LV frail/linear")
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	for _, v := range in.Volumes {
		if v.HasSnapshots {
			require.Contains(t, v.Problem, "or of the store of one of its snapshots")
		}
	}
	require.Equal(t, "snap-of-linear\nsnap-of-mirror", shellOut("lvs --noheadings -a -o lv_name,origin,devices frail | awk 'NF == 3 && /unknown/ { print $1 }' | sort"))
	for _, snap := range []string{"snap-of-linear", "snap-of-mirror"} {
		m.shell(`lvremove --yes --config 'activation{activation_mode="partial"}' frail/%s`, snap)
	}
	require.Equal(t, []string{"mirror"}, partial())
	m.shell("vgreduce --removemissing --force frail")
	require.Equal(t, []string{"linear", "mirror"}, strings.Fields(shellOut("lvs --noheadings -o lv_name frail")))
	for _, target := range []string{linear, mirror} {
		require.Equal(t, "kept", m.shell("cat %s/kept", target))
		m.shell("echo more >%[1]s/more && sync %[1]s/more", target)
		m.unmount(target)
	}
	f.set(1, f.table(1))
	m.shell("vgchange -an frail")
}
