package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A raw block volume whose growth was killed after lvextend, or ran out of time while it was zeroed, has got a
// copy-on-write snapshot since. Nothing is zeroed, not even by a call for the size that the volume has.
func TestSnapshotsKeepABlockVolumeFromGrowing(t *testing.T) {
	const old, grown = 64 * volume.MiB, 128 * volume.MiB
	dir := t.TempDir()
	device, disk := filepath.Join(dir, "device"), filepath.Join(dir, "disk")
	require.NoError(t, os.WriteFile(device, nil, 0o600))
	require.NoError(t, os.Truncate(device, int64(grown)))
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	group := &fakeGroup{device: disk}
	run := commandtest.Func(group.run)
	e, err := New(Config{StateDir: dir, LockDir: t.TempDir()}, command.Programs{Unkillable: run, Killable: run})
	require.NoError(t, err)
	d := lvm.Device{Path: device, Group: "flexlvm", Name: "data", VolumeUUID: "u"}
	lv := lvm.LogicalVolume{Group: d.Group, Name: d.Name, UUID: d.VolumeUUID, Size: grown, HasSnapshots: true, Shape: volume.Shape{Layout: volume.Linear}}
	tags := volume.Tags{State: volume.Ready, FS: copyFS, Size: old, Namespace: "n", Kind: volume.Claim, FSType: volume.Raw}
	spec := volume.Spec{Group: d.Group, Name: d.Name, FSType: volume.Raw}
	f := openedVolume{device: d, tags: tags, content: e.contentOf(d, tags)}

	err = e.extendAndRecord(t.Context(), &f, lv, grown, spec)
	require.ErrorIs(t, err, lvm.ErrHasSnapshots)
	require.ErrorContains(t, err, "`lvs -o +lv_tags -S 'origin=data' flexlvm`")
	require.Empty(t, group.ran)
	require.Equal(t, old, f.tags.Size)

	require.NoError(t, e.extendAndRecord(t.Context(), &f, lv, old, spec))
	rec, err := e.records.read(lv.Group, lv.Name)
	require.NoError(t, err)
	require.Equal(t, old, rec.Size)

	lv.HasSnapshots = false
	require.ErrorContains(t, e.extendAndRecord(t.Context(), &f, lv, grown, spec), "find the devices below it", "it would be zeroed")
}
