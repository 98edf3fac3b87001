package node

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// inventoryOf is what an engine makes of a full report of LVM's.
func inventoryOf(t *testing.T, report string) inventory.Inventory {
	t.Helper()
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(func(...string) (string, error) { return report, nil })
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, host)
	require.NoError(t, err)
	in, err := e.Inventory(t.Context())
	require.NoError(t, err)
	return in
}

func everything(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../lvm/testdata/everything.json")
	require.NoError(t, err)
	return string(b)
}

// vg_free counts what is free on a device that LVM may not take room from (pvchange --allocatable n).
func TestRoomThatLVMDoesNotGiveIsNobodys(t *testing.T) {
	all := inventoryOf(t, everything(t)).Pools[1]
	const c = `"pv_name":"/dev/mapper/c", "pv_free":"314572800", "pv_missing":"", "pv_allocatable":"`
	report := everything(t)
	require.Contains(t, report, c)
	less := inventoryOf(t, strings.Replace(report, c+"allocatable", c, 1)).Pools[1]
	require.Equal(t, all.Free-300*volume.MiB, less.Free)
	require.Equal(t, all.Size-300*volume.MiB, less.Size)
}

func TestVolumesOfAnExportedGroup(t *testing.T) {
	in := inventoryOf(t, strings.ReplaceAll(everything(t), `"vg_exported":""`, `"vg_exported":"exported"`))
	for _, v := range in.Volumes {
		require.True(t, in.Exported(&v))
		require.Equal(t, v.State == volume.Ready, strings.Contains(v.Problem, "`vgimport flexlvm`"), "%s: %s", v.Name, v.Problem)
	}
	require.NotEmpty(t, in.Volumes)
}
