//go:build vm

package discovery

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	utilsexec "k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/lvm"
)

// A device is recognized under any path, and when the file system on it is found.
func TestMachinePlaces(t *testing.T) {
	base := t.TempDir()
	raw, fast, one, other := filepath.Join(base, "raw"), filepath.Join(base, "fast"), disks(t)[1], disks(t)[0]
	shell(t, "wipefs -qa %[1]s; mkdir -p %[2]s %[3]s/data; ln -s %[1]s %[2]s/one; mkfs.ext4 -qF %[4]s; mount %[4]s %[3]s/data", one, raw, fast, other)
	t.Cleanup(func() { shell(t, "umount %s/data", fast) })
	shell(t, "ln -s %[1]s %[3]s/link; ln -s %[2]s %[3]s/disk; mkdir %[3]s/again; mount --bind %[2]s/data %[3]s/again", one, fast, base)
	t.Cleanup(func() { shell(t, "umount %s/again", base) })
	m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
	device := found1(t, m, Class{Name: "raw", Directory: raw, Block: true, Device: Zero})
	mounted := found1(t, m, Class{Name: "fast", Directory: fast, Files: true})
	paths := []string{one, base + "/link", other, base + "/disk/data", base + "/again/x", base + "/none"}
	for i, place := range m.Resolve(t.Context(), paths) {
		isDevice, err := device.IsAt(&place)
		require.NoError(t, err)
		require.Equal(t, i < 2, isDevice, paths[i])
		isMounted, err := mounted.IsAt(&place)
		require.NoError(t, err)
		require.Equal(t, i >= 2 && i < 5, isMounted, paths[i])
	}
}
