//go:build vm

package node

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A disk fails while a mirror is wiped. The volume is not removed before the copy on that disk is wiped as well.
func TestMirrorWhoseDiskFailsWhileItIsWiped(t *testing.T) {
	v := newMirrored(t)
	const secret = "the secret of a tenant"
	target := v.mount(v.spec, "a")
	v.shell("yes '%[2]s' | head -c 8M >%[1]s/secret && sync %[1]s/secret", target, secret)
	v.unmount(target)
	secrets := func(i int) string {
		return v.shell("head -c 128M /dev/mapper/frail%d | tr -d '\\0' | grep -ac '%s' || true", i, secret)
	}
	require.NotEqual(t, "0", secrets(0))
	require.NotEqual(t, "0", secrets(1))
	require.NoError(t, v.Release(v.ctx(), refOf(v.spec), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	v.after = func(step string) {
		if step == "lvrename" {
			v.fail(1)
		}
	}
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "_rimage_1 of volume frail/doomed_data cannot be used")
	v.after = func(string) {}
	v.set(1, v.table(1))
	v.shell("lvchange --refresh %s/doomed_data", v.group)

	v.wipeProgressInterval = 16 * volume.MiB
	v.after = func(step string) {
		if step == "wipe part" {
			v.fail(1)
		}
	}
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "_rimage_1 of volume frail/doomed_data cannot be used")
	v.after = func(string) {}
	if rec, err := v.records.read(v.group, v.spec.Name.Doomed()); !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
		require.Zero(t, rec.Wiped, "a person may make the volume linear, and then the failed copy is all that is left")
	}
	v.set(1, v.table(1))
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "cannot be used", "the disk is back, and its copy is not in use yet")
	v.shell("vgchange -an %s", v.group)
	v.fail(1)
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "cannot be used", "after a boot without it")
	v.set(1, v.table(1))
	require.NoError(t, v.Remove(v.ctx(), refOf(v.spec)))
	require.Equal(t, "0", secrets(0))
	require.Equal(t, "0", secrets(1))
}

// A disk dies while a mirror is wiped. The removal goes on without it once a person has given its copy up.
func TestMirrorIsWipedWithoutADeadDisk(t *testing.T) {
	v := newMirrored(t)
	require.NoError(t, v.Release(v.ctx(), refOf(v.spec), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	v.after = func(step string) {
		if step == "lvrename" {
			v.fail(1)
		}
	}
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "cannot be used")
	v.after = func(string) {}
	v.shell("vgreduce --removemissing --force %s", v.group)
	require.ErrorContains(t, v.Remove(v.ctx(), refOf(v.spec)), "_rimage_1 of volume frail/doomed_data cannot be used")
	v.shell("lvconvert --yes --mirrors 0 %s/doomed_data", v.group)
	require.NoError(t, v.Remove(v.ctx(), refOf(v.spec)))
	require.Empty(t, shellOut("lvs --noheadings -a -o lv_name frail"))
	v.set(1, v.table(1))
}
