//go:build vm

package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The disk of a snapshot's store goes away while its source is written to, and comes back with a reboot. The kernel
// could not write there that the snapshot is invalid, so LVM shows it as valid, but it is not restored.
func TestSnapshotWhoseDiskComesBack(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	s := specOf("source", 64*volume.MiB)
	s.Group = f.group
	m.shell("pvchange --allocatable n /dev/mapper/frail1")
	target := m.mount(s, "a")
	t.Cleanup(func() { _ = m.Unmount(m.ctx(), target) })
	randomFile(t, target+"/kept", 8*volume.MiB)
	overwrite(t, target+"/more", 16*volume.MiB)
	m.shell("pvchange --allocatable y /dev/mapper/frail1 && pvchange --allocatable n /dev/mapper/frail0")
	snap := specOf("snap", s.Size)
	snap.Group, snap.Kind, snap.CloneOf = f.group, volume.Snapshot, s.Name
	m.snapshotNow(snap)
	m.shell("pvchange --allocatable y /dev/mapper/frail0")
	require.False(t, m.see(snap.Name).Overflowed)

	f.fail(1)
	overwrite(t, target+"/more", 16*volume.MiB)
	over := m.see(snap.Name)
	require.True(t, over.Overflowed)
	require.FileExists(t, m.invalidNotes.file(over.UUID))
	copied := specOf("copied", s.Size)
	copied.Group, copied.CloneOf = f.group, snap.Name
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), copied), "has overflowed")

	m.unmount(target)
	m.shell("vgchange -an %s", f.group)
	f.set(1, f.table(1))
	m.shell("lvchange --yes -ay %s/%s", f.group, s.Name)
	lv, err := m.lvm.Volume(m.ctx(), f.group, snap.Name)
	require.NoError(t, err)
	require.True(t, lv.Active)
	require.False(t, lv.Overflowed, "LVM knows it by now, and this test shows nothing")
	require.True(t, m.see(snap.Name).Overflowed)
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), copied), "that snapshot was found to be invalid")
	require.ErrorIs(t, m.tryMount(copied, m.target("r")), ErrNotCopied)

	require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(snap)))
	require.NoFileExists(t, m.invalidNotes.file(over.UUID))
}
