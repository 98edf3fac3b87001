package lvm

import (
	"os"
	"path/filepath"
	"strings"
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
	require.ErrorContains(t, err, "run `dmsetup resume flexlvm-data`", "of another program")

	require.NoError(t, os.RemoveAll(volume+"/dm/name"))
	require.Error(t, checkResumed(volume, path))
	device("volume", "flexlvm-data", "0")
	require.NoError(t, os.RemoveAll(volume+"/slaves"))
	require.Error(t, checkResumed(volume, path), "what cannot be found out does not pass")
}

// An LVM mapping gets the table that LVM has committed: tables that an interrupted command has left are
// first cleared in all suspended mappings.
func TestResumeCommand(t *testing.T) {
	sys := t.TempDir()
	id := "LVM-" + strings.Repeat("a", 2*uuidChars)
	device := func(dir, name, uuid, suspended string) string {
		dir = filepath.Join(sys, dir)
		require.NoError(t, os.MkdirAll(dir+"/slaves", 0o755))
		require.NoError(t, os.MkdirAll(dir+"/dm", 0o755))
		for file, text := range map[string]string{"name": name, "uuid": uuid, "suspended": suspended} {
			require.NoError(t, os.WriteFile(dir+"/dm/"+file, []byte(text+"\n"), 0o600))
		}
		return dir
	}
	plain := device("plain", "flexlvm-pvc--1", id, "1")
	require.ErrorContains(t, checkResumed(plain, "/dev/x"), "run `dmsetup clear flexlvm-pvc--1 && lvchange --refresh flexlvm/pvc-1`")
	mirror := device("mirror", "flexlvm-m", id, "1")
	device("mirror/slaves/dm-1", "flexlvm-m_rimage_0", id, "1")
	device("mirror/slaves/dm-2", "flexlvm-m_rmeta_0", id, "0")
	device("mirror/slaves/dm-3", "flexlvm-m_rimage_1", id, "1")
	require.ErrorContains(t, checkResumed(mirror, "/dev/x"), "run `dmsetup clear flexlvm-m flexlvm-m_rimage_0 flexlvm-m_rimage_1 && lvchange --refresh flexlvm/m`")
	for name, c := range map[string]struct{ uuid, says string }{
		"flexlvm-pool-tpool":  {id + "-tpool", "`dmsetup clear flexlvm-pool-tpool && lvchange --refresh flexlvm/pool`"},
		"flexlvm-pool_tdata":  {id + "-tdata", "lvchange --refresh flexlvm/pool`"},
		"flexlvm-a--b-real":   {id + "-real", "lvchange --refresh flexlvm/a-b`"},
		"flexlvm-m_rimage_1":  {id, "lvchange --refresh flexlvm/m`"},
		"flexlvm-block-a":     {"flexlvm-x", "`dmsetup resume flexlvm-block-a`"},
		"flexlvm-crypt-a":     {"CRYPT-LUKS2-x", "`dmsetup resume flexlvm-crypt-a`"},
		"without a separator": {id, "`dmsetup resume without a separator`"},
	} {
		require.ErrorContains(t, checkResumed(device(name, name, c.uuid, "1"), "/dev/x"), c.says, name)
	}
}
