//go:build vm

package node

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// unfinished leaves a mirror in the state in which a power cut leaves one that LVM has begun to create: its
// metadata subvolumes are not wiped yet, and listed as volumes.
func (m *machine) unfinished(name string) volume.Spec {
	m.t.Helper()
	s := m.volume(name, 64*volume.MiB)
	tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind}
	m.half(s, tags)
	backup := filepath.Join(m.dir, "backup")
	m.shell("lvchange -qq --activate n %s/%s; vgcfgbackup -qq -f %s %[1]s", group, name, backup)
	m.shell(`tags="$(sed -n '/\t%[1]s {/,/}/ { /tags = / p }' %[2]s)"
		sed -i -e '/\t%[1]s {/,/}/ s/flags = \[\]/flags = ["ACTIVATION_SKIP"]/' \
			-e '/\t%[1]s_rmeta_. {/,/}/ { s/"WRITE"\]/"WRITE", "VISIBLE"]/; s/flags = \[\]/flags = []\n'"$tags"'/ }' %[2]s
		vgcfgrestore -qq --yes -f %[2]s %[3]s; vgchange -qq --activate ay %[3]s # as at boot`, name, backup, group)
	require.Subset(m.t, lvs(), []string{name, name + "_rmeta_0", name + "_rmeta_1"})
	return s
}

func TestMirrorThatIsUnfinished(t *testing.T) {
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
	s := m.unfinished("begun")
	all, err := m.lvm.Volumes(m.ctx())
	require.NoError(t, err)
	require.Len(t, all, 1, "its metadata counts as volumes")
	target := m.mount(s, "a")
	size, _, _ := df(t, target)
	require.Equal(t, s.Size, size)
	require.Equal(t, s.Size, fill(t, target+"/data"))
	require.NotEqual(t, copyFS, tagsOf(t, s.Name).FS)
	require.Equal(t, []string{"begun"}, lvs())
	m.unmount(target)

	// It can also be removed, and has nothing to be wiped.
	gone := m.unfinished("gone")
	require.NoError(t, m.Release(m.ctx(), refOf(gone), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	require.NoError(t, m.Remove(m.ctx(), refOf(gone)))
	require.Equal(t, []string{"begun"}, lvs())

	// If a record shows that a pod had the volume, or the volume is to be brought back, it must not be
	// removed.
	doubted := m.unfinished("doubted")
	back := doubted
	back.FS = tagsOf(t, doubted.Name).FS
	require.ErrorIs(t, m.tryMount(back, m.target("b")), ErrDamaged)
	lv, err := m.lvm.Volume(m.ctx(), doubted.Group, doubted.Name)
	require.NoError(t, err)
	require.NoError(t, m.records.write(lv.Group, lv.Name, newRecord(lv.UUID, tagsOf(t, lv.Name))))
	require.ErrorIs(t, m.tryMount(doubted, m.target("b")), ErrDamaged)
	still, err := m.lvm.Volume(m.ctx(), doubted.Group, doubted.Name)
	require.NoError(t, err)
	require.Equal(t, lv.UUID, still.UUID)
}

// A person may configure LVM to skip the activation of a volume.
func TestVolumeWhoseActivationIsSkipped(t *testing.T) {
	m := newMachine(t)
	s := m.volume("skipped", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	m.shell("lvchange -qq --setactivationskip y --activate n %s/%s", group, s.Name)
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	require.Contains(t, m.describe(lv).Problem, "LVM skips its activation")
	require.ErrorContains(t, m.tryMount(s, m.target("a")), "lvchange --setactivationskip n "+string(group)+"/skipped")
	m.shell("lvchange -qq --setactivationskip n %s/%s", group, s.Name)
	m.unmount(m.mount(s, "a"))
}
