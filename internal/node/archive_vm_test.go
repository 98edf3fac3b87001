//go:build vm

package node

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// LVM does not archive the whole group before a change of tags alone, and still backs up the result. It
// archives the group before it creates or removes a volume.
func TestChangesOfTagsAreNotArchived(t *testing.T) {
	m := newMachine(t)
	archived := func() int { return len(strings.Fields(shellOut("ls /etc/lvm/archive"))) }
	before := func(command string) int {
		return len(strings.Fields(shellOut("grep -l \"before.*executing '" + command + " \" /etc/lvm/archive/" + string(group) + "_*")))
	}
	backedUp := func(s volume.State) {
		t.Helper()
		text, err := os.ReadFile("/etc/lvm/backup/" + string(group))
		require.NoError(t, err)
		require.Contains(t, string(text), `"`+s.Tag()+`"`)
	}
	creations, changes, removals := before("lvcreate"), before("lvchange"), before("lvremove")
	s := m.volume("data", 16*volume.MiB)
	m.unmount(m.mount(s, "a"))
	require.Greater(t, before("lvcreate"), creations)

	all := archived()
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	backedUp(volume.Unreferenced)
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	require.NoError(t, m.lvm.Doom(m.ctx(), s.Group, []lvm.LogicalVolume{lv}))
	backedUp(volume.Doomed)
	require.Equal(t, all, archived())

	require.NoError(t, m.lvm.RemoveDoomed(m.ctx(), s.Group, []lvm.LogicalVolume{lv}))
	require.Greater(t, before("lvremove"), removals)
	require.Equal(t, changes, before("lvchange"))
}
