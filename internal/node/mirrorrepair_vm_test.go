//go:build vm

package node

import (
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
	refused := func(says string) {
		err := v.Mount(v.ctx(), v.spec, target, false)
		require.ErrorIs(t, err, lvm.ErrPartial)
		require.ErrorContains(t, err, says)
		require.Equal(t, v.volume1(t).Problem, err.Error())
	}
	linear, err := v.lvm.Volume(v.ctx(), v.group, v.spec.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Linear, linear.Shape.Layout)
	refused("is no longer raid1")
	v.shell("lvchange --activate n %s/%s", v.group, v.spec.Name)
	refused("is no longer raid1")
	v.set(1, v.table(1))
	v.shell("wipefs --all /dev/mapper/frail1 && vgextend --metadatasize 16m %s /dev/mapper/frail1", v.group)
	v.shell("lvchange --activate y %[1]s/%[2]s && lvconvert --yes --type raid1 --mirrors 1 %[1]s/%[2]s", v.group, v.spec.Name)
	require.Eventually(t, func() bool { return v.volume1(t).SyncPercent == "100.00" }, time.Minute, time.Second)
	refused("which is unknown to this node")
	v.shell("rm %s", note) // a person accepts it
	v.mount(v.spec, "a")
	require.FileExists(t, target+"/first")
	require.NoFileExists(t, target+"/more")
	v.unmount(target)
}

// The disk with the newer copy was removed from the group and is intact: it is put back as docs/node-loss.md describes,
// and the volume has the newer data.
func TestRemovedDiskIsPutBack(t *testing.T) {
	v := newMirrored(t)
	target, _ := v.oldCopy()
	v.shell("vgreduce --removemissing --force %s", v.group)
	v.shell("lvchange --activate n %[1]s/%[2]s && lvchange --activate y %[1]s/%[2]s", v.group, v.spec.Name)
	for range 2 {
		err := v.Mount(v.ctx(), v.spec, target, false)
		require.ErrorContains(t, err, newerGone)
		require.NotContains(t, err.Error(), "take its device away")
		require.NotContains(t, err.Error(), "bring them back")
	}
	v.shell("vgchange --activate n %s", v.group)
	v.set(1, v.table(1))
	archive := v.shell("grep -lr 'before.*vgreduce --removemissing' /etc/lvm/archive | sort | tail -n 1")
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
