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

// Space of a device beyond the size that LVM has committed may belong to another volume.
func TestCommittedSize(t *testing.T) {
	const size = 64 * volume.MiB
	dir := t.TempDir()
	file := func(name string, size volume.Bytes) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, int64(size)))
		return path
	}
	run := commandtest.Func((&fakeGroup{lvs: []fakeLV{{name: "data", uuid: "u", attr: "-wi-a-----", size: "67108864"}}}).run)
	e, err := New(Config{StateDir: dir, LockDir: t.TempDir()}, command.Programs{Unkillable: run, Killable: run})
	require.NoError(t, err)
	d := lvm.Device{Path: file("device", size), Group: "flexlvm", Name: "data", VolumeUUID: "u"}
	got, err := e.committedSize(t.Context(), d, d.Path)
	require.NoError(t, err)
	require.Equal(t, size, got)
	got, err = e.committedSize(t.Context(), d, file("container", size-volume.LUKSHeader))
	require.NoError(t, err)
	require.Equal(t, size-volume.LUKSHeader, got)
	_, err = e.committedSize(t.Context(), d, file("container", size))
	require.ErrorContains(t, err, "has 67108864 bytes, and 50331648 are committed")
	d.Path = file("device", size+volume.MiB)
	_, err = e.committedSize(t.Context(), d, d.Path)
	require.ErrorContains(t, err, "`lvchange --refresh flexlvm/data`")
	d.VolumeUUID = "v"
	_, err = e.committedSize(t.Context(), d, d.Path)
	require.ErrorContains(t, err, "is u, and was v")
	d.Name = "gone"
	_, err = e.committedSize(t.Context(), d, d.Path)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
}

// LVM commits a size before it gives it to the kernel, and may be killed in between. A volume that the kernel has not
// extended is not said to have grown, by the call that extended it or by one that finds nothing to extend.
func TestExtendChecksTheKernelsSize(t *testing.T) {
	const old, grown = 64 * volume.MiB, 128 * volume.MiB
	dir := t.TempDir()
	run := commandtest.Func((&fakeGroup{}).run)
	e, err := New(Config{StateDir: dir, LockDir: t.TempDir()}, command.Programs{Unkillable: run, Killable: run})
	require.NoError(t, err)
	d := lvm.Device{Path: filepath.Join(dir, "device"), Group: "flexlvm", Name: "data"}
	require.NoError(t, os.WriteFile(d.Path, nil, 0o600))
	for name, c := range map[string]struct {
		committed, device volume.Bytes
		says              string
	}{
		"extended":                            {old, grown, ""},
		"more than was asked for":             {old, grown + volume.DefaultExtent, ""},
		"only committed":                      {old, old, "LVM has committed at least 134217728 bytes for it, and its device " + d.Path + " has 67108864"},
		"only committed, by an earlier call":  {grown, old, "`lvchange --refresh flexlvm/data`"},
		"extended completely by another call": {grown, grown, ""},
	} {
		require.NoError(t, os.Truncate(d.Path, int64(c.device)))
		err := e.extend(t.Context(), lvm.LogicalVolume{Group: "flexlvm", Name: "data", Size: c.committed, Shape: volume.Shape{Layout: volume.Linear}}, d, grown)
		if c.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.says, name)
		}
	}
}
