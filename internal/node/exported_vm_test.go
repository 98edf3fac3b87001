//go:build vm

package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A person exports a group: it is reported as exported, with its volumes, none of its volumes is created,
// mounted or removed, and after an import everything is as before.
func TestExportedGroup(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	s := specOf("data", 64*volume.MiB)
	s.Group = f.group
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
	m.unmount(target)
	var refs []Ref
	for _, name := range []string{"old-1", "old-2"} {
		old := specOf(name, 16*volume.MiB)
		old.Group = f.group
		m.unmount(m.mount(old, name))
		require.NoError(t, m.Release(m.ctx(), refOf(old), volume.Unreferenced, volume.Disposal{}))
		refs = append(refs, m.refOfThis(old))
	}
	m.shell("vgchange --activate n %s && vgexport %s", f.group, f.group)
	t.Cleanup(func() { m.shell("vgimport %s || true", f.group) })

	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	found := 0
	for _, v := range in.Volumes {
		if v.Group == f.group {
			found++
			require.True(t, in.Exported(&v))
			require.Equal(t, v.State == volume.Ready, v.Problem != "", v.Problem)
		}
	}
	require.Equal(t, 3, found, "LVM shows what is in it")

	fresh := specOf("fresh", 16*volume.MiB)
	fresh.Group = f.group
	for _, one := range []volume.Spec{s, fresh} {
		require.ErrorIs(t, m.tryMount(one, m.target("b")), lvm.ErrExported, one.Name)
	}
	for i, err := range m.RemoveAll(m.ctx(), refs) {
		require.ErrorIs(t, err, lvm.ErrExported)
		rec, err := m.records.read(refs[i].Group, refs[i].Name)
		require.NoError(t, err)
		require.Equal(t, volume.Unreferenced, rec.State)
	}

	m.shell("vgimport %s", f.group)
	require.NoError(t, m.Heal(m.ctx(), refOf(s)))
	target = m.mount(s, "a")
	b, err := os.ReadFile(target + "/f")
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	m.unmount(target)
	for _, err := range m.RemoveAll(m.ctx(), refs) {
		require.NoError(t, err)
	}
}
