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
