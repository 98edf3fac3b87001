//go:build vm

package csidoor_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The life of an encrypted ext4 volume through kubelet's calls.
func TestEncryptedExt4(t *testing.T) {
	b := newEncryptedBed(t)
	b.Spec.FSType = volume.Ext4
	require.False(t, b.verb("mount").run(t))
	require.Equal(t, b.Spec.Size, b.size())
	require.Contains(t, b.sh("grep ' "+b.Target+" ' /proc/mounts"), " ext4 ")
	b.write()
	require.False(t, b.below(pattern))
	grow := b.verb("expand")
	grow.Size = grown
	require.False(t, grow.run(t))
	require.Equal(t, grown, b.size())
	require.False(t, b.verb("unmount").run(t))
	require.Empty(t, b.mappings())
	b.sh("lvchange -an flexlvm-test/data") // as after a reboot
	require.False(t, b.verb("mount").run(t))
	b.requireKept()
	mapping := b.mappings()
	b.sh("umount " + b.Target + "; e2fsck -fn /dev/mapper/" + mapping)
	require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/data"), "flexlvm.fstype=ext4")

	// A volume without its file system is damaged, and is not formatted again.
	b.sh("dd if=/dev/zero of=/dev/mapper/" + mapping + " bs=64k count=1 conv=fsync 2>/dev/null")
	require.Contains(t, b.verb("mount").fails(t), "should hold the ext4 file system")
}

func TestEncryptedExt4PublishKilledAfterSomeSteps(t *testing.T) {
	b := newEncryptedBed(t)
	b.Spec.FSType = volume.Ext4
	deaths := afterSomeSteps(t, 1, b.verb("mount"), b.clear, func(die int) {
		require.Equal(t, "data", b.lvs(), "one volume after death %d", die)
		require.Equal(t, b.Spec.Size, b.size())
		b.sh("dd if=/dev/zero of=" + b.Target + "/fill bs=1M count=15 conv=fsync 2>/dev/null")
	})
	require.Equal(t, 14, deaths, "lvcreate, luksFormat, set LUKS UUID, luksOpen, mkfs, mark; attach, set project, grow, set quota; write record, tag ready, record ready; move mount")
}

// A clone has its own LUKS container and file system.
func TestEncryptedExt4Copy(t *testing.T) {
	b := newEncryptedBed(t)
	b.sh("lvcreate --yes -q --thin --size 2G --zero y --errorwhenfull y --addtag flexlvm --addtag flexlvm.kind=pool --thinpool thinpool flexlvm-test")
	t.Cleanup(func() { b.sh("lvremove --yes flexlvm-test/thinpool") })
	b.Spec.Layout, b.Spec.ThinPool, b.Spec.FSType = volume.Thin, "thinpool", volume.Ext4
	t.Cleanup(b.clear) // before the pool
	require.False(t, b.verb("mount").run(t))
	b.write()

	c := b.verb("mount")
	c.Spec.Name, c.Spec.CloneOf = "copy", b.Spec.Name
	c.Target += "-copy"
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		_ = exec.Command("umount", c.Target).Run()
		require.NoError(t, b.engine().CloseUnused(ctx))
		b.sh("lvremove --yes flexlvm-test/copy")
	})
	require.False(t, c.run(t))
	require.Equal(t, b.sh("md5sum < "+b.Target+"/f"), b.sh("md5sum < "+c.Target+"/f"))
	all, err := b.engine().List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NotEqual(t, all[0].FS, all[1].FS)
	for _, v := range all {
		require.Equal(t, volume.Ext4, v.FSType)
	}
	require.Len(t, strings.Fields(b.mappings()), 2, "side by side")
}
