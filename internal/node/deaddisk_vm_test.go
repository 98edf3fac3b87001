//go:build vm

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A disk of a group is dead and is replaced as docs/disk-loss.md describes: a volume on that disk alone is
// lost and is not created again, a volume with another copy is complete again, and nothing else is touched.
func TestDeadDiskIsReplaced(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	mounted := func(name string, layout volume.Layout) (volume.Spec, string) {
		s := specOf(name, 64*volume.MiB)
		s.Group, s.Layout = f.group, layout
		target := m.mount(s, name)
		t.Cleanup(func() { _ = m.Unmount(m.ctx(), target) })
		require.NoError(t, os.WriteFile(target+"/f", []byte(name), 0o600))
		return s, target
	}
	m.shell("pvchange --allocatable n /dev/mapper/frail0")
	lost, gone := mounted("lost", volume.Linear)
	m.shell("pvchange --allocatable y /dev/mapper/frail0 && pvchange --allocatable n /dev/mapper/frail1")
	kept, there := mounted("kept", volume.Linear)
	m.shell("pvchange --allocatable y /dev/mapper/frail1")
	_, mirrored := mounted("mirrored", volume.Raid1)
	copied := func() string {
		return shellOut("lvs --noheadings -o sync_percent,lv_health_status frail/mirrored")
	}
	require.Eventually(t, func() bool { return copied() == "100.00" }, 5*time.Minute, time.Second, "%s", copied())

	f.fail(1)
	m.unmount(gone)
	require.Equal(t, []string{"lost", "linear", "mirrored", "raid1"}, strings.Fields(shellOut("lvs --noheadings -o lv_name,segtype -S 'vg_name=frail && lv_health_status=partial'")))
	m.shell("vgreduce --removemissing --force %s", f.group)
	require.Equal(t, []string{"kept", "mirrored"}, strings.Fields(shellOut("lvs --noheadings -o lv_name frail")))
	require.ErrorIs(t, m.tryMount(lost, gone), ErrLost)

	f.set(1, f.table(1))
	m.shell("wipefs --all /dev/mapper/frail1") // another disk, a blank one
	m.shell("vgextend --metadatasize 16m %s /dev/mapper/frail1", f.group)
	m.shell("lvconvert --repair --yes %s/mirrored", f.group)
	require.Eventually(t, func() bool { return copied() == "100.00" }, 5*time.Minute, time.Second, "%s", copied())

	for _, target := range []string{there, mirrored} {
		b, err := os.ReadFile(target + "/f")
		require.NoError(t, err)
		require.Equal(t, filepath.Base(target), string(b))
	}
	require.NoError(t, m.Expand(m.ctx(), kept, grown))
	require.ErrorIs(t, m.tryMount(lost, gone), ErrLost, "no empty volume takes its place")
}
