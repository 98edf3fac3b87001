//go:build vm

package discovery

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	utilsexec "k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/lvm"
)

// A logical volume can be offered, as a device or with a file system, unless it is one of flexlvm's.
func TestMachineLogicalVolume(t *testing.T) {
	base := t.TempDir()
	raw, fast, disk := filepath.Join(base, "raw"), filepath.Join(base, "fast"), disks(t)[1]
	shell(t, "wipefs -qa %[1]s; mkdir -p %[2]s %[3]s/data; vgcreate -qqy tank %[1]s; lvcreate -qqy -Wy -L 64m -n data-1 tank; lvcreate -qqy -Wy -L 64m -n raw tank; ln -s /dev/tank/raw %[2]s/one", disk, raw, fast)
	t.Cleanup(func() { shell(t, "vgremove -qqfy tank; pvremove -qqy %[1]s; wipefs -qa %[1]s", disk) })
	shell(t, "mkfs.ext4 -qF /dev/tank/data-1; mount /dev/tank/data-1 %s/data", fast)
	t.Cleanup(func() { shell(t, "umount %s/data", fast) })
	m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
	for lv, class := range map[string]Class{
		"tank/raw":    {Name: "raw", Directory: raw, Block: true, Device: Zero},
		"tank/data-1": {Name: "fast", Directory: fast, Files: true},
	} {
		f := found1(t, m, class)
		require.Empty(t, f.Problem)
		require.NoError(t, offerable(t, m, f, class, Entry{}))
		shell(t, "lvchange -qqy --addtag flexlvm %s", lv)
		require.ErrorIs(t, offerable(t, m, f, class, Entry{}), errIsFlexlvm)
		require.ErrorIs(t, m.Clean(t.Context(), f, class, Entry{}, noProgress), errIsFlexlvm)
		shell(t, "lvchange -qqy --deltag flexlvm %s", lv)
		require.NoError(t, m.Clean(t.Context(), f, class, Entry{}, noProgress))
	}
}
