package lvm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckResumed(t *testing.T) {
	sys := t.TempDir()
	device := func(dir, name, suspended string) string {
		dir = filepath.Join(sys, dir)
		require.NoError(t, os.MkdirAll(dir+"/slaves", 0o755))
		require.NoError(t, os.MkdirAll(dir+"/dm", 0o755))
		require.NoError(t, os.WriteFile(dir+"/dm/name", []byte(name+"\n"), 0o600))
		require.NoError(t, os.WriteFile(dir+"/dm/suspended", []byte(suspended+"\n"), 0o600))
		return dir
	}
	const path = "/dev/mapper/flexlvm-data"
	volume := device("volume", "flexlvm-data", "0")
	require.NoError(t, os.MkdirAll(volume+"/slaves/sda", 0o755))
	require.NoError(t, checkResumed(volume, path))
	require.NoError(t, checkResumed(volume+"/slaves/sda", path), "a disk is no device of device-mapper's")

	device("volume/slaves/dm-1", "flexlvm-pool-tpool", "0")
	device("volume/slaves/dm-1/slaves/dm-2", "flexlvm-pool_tdata", "1")
	err := checkResumed(volume, path)
	require.ErrorIs(t, err, ErrSuspended)
	require.ErrorContains(t, err, "run `dmsetup resume flexlvm-pool_tdata`", "what it stands on")

	md := filepath.Join(sys, "md0")
	require.NoError(t, os.MkdirAll(md+"/md0p1/partition", 0o755))
	device("md0/slaves/dm-3", "crypt", "1")
	require.ErrorContains(t, checkResumed(md, path), "run `dmsetup resume crypt`", "md is no device-mapper's, and stands on one")
	require.ErrorContains(t, checkResumed(md+"/md0p1", path), "run `dmsetup resume crypt`", "as a partition of it does")

	device("volume", "flexlvm-data", "1")
	err = checkResumed(volume, path)
	require.ErrorIs(t, err, ErrSuspended)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "run `dmsetup resume flexlvm-data`")

	require.NoError(t, os.RemoveAll(volume+"/dm/name"))
	require.Error(t, checkResumed(volume, path))
	device("volume", "flexlvm-data", "0")
	require.NoError(t, os.RemoveAll(volume+"/slaves"))
	require.Error(t, checkResumed(volume, path), "what cannot be found out does not pass")
}
