package lvm

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestParseUndelivered(t *testing.T) {
	text := golden(t, "undelivered.vg")
	u, ok := parseUndelivered(text, "thinpool", "copy")
	require.True(t, ok)
	require.Equal(t, undelivered{device: 2, transaction: 2}, u)
	for _, n := range []volume.Name{"data", "cop", "opy", "thinpool", "none"} {
		_, ok = parseUndelivered(text, "thinpool", n)
		require.False(t, ok, n)
	}
	_, ok = parseUndelivered(text, "other", "copy")
	require.False(t, ok)
	_, ok = parseUndelivered(strings.Replace(text, `create = "copy"`, `delete = 2`, 1), "thinpool", "copy")
	require.False(t, ok)
	n, err := parseTransaction("0 2097152 thin-pool 1 1650/16384 0/16384 - rw discard_passdown error_if_no_space - 1024 \n")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for _, s := range []string{"", "0 2097152 thin 0 -", "0 2097152 thin-pool Fail"} {
		_, err = parseTransaction(s)
		require.ErrorContains(t, err, "makes no sense")
	}
}

// backing returns s with a vgcfgbackup that writes text into its file.
func backing(s *script, text string) commandtest.Func {
	return func(argv ...string) (string, error) {
		if argv[0] == "vgcfgbackup" {
			return "", os.WriteFile(argv[2], []byte(text), 0o600)
		}
		return s.run(argv...)
	}
}

// A snapshot is deleted from its pool only if LVM's metadata and the pool's transaction count both show
// that it was never finished.
func TestRemoveHalfASnapshot(t *testing.T) {
	lv := LogicalVolume{Group: "flexlvm", Name: "copy", UUID: "tHeleC-3qD9-pQE2-FP43-6nIB-m6eI-kWHzfS", Shape: volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}}
	text := golden(t, "undelivered.vg")
	const told, counted = "0 2097152 thin-pool 1 1650/16384 0/16384 - rw", "0 2097152 thin-pool 2 1650/16384 0/16384 - rw"
	remove := func(text, status string, again error) (string, error) {
		s := &script{t: t, answers: map[string][]answer{
			"lvremove": {{err: failed}, {err: again}},
			"dmsetup":  {{out: status}, {}},
			"lvs":      {{out: golden(t, "no-volumes.json")}}, "vgs": {{out: golden(t, "groups.json")}}, "pvs": {{out: golden(t, "devices.json")}},
		}}
		c := New(backing(s, text), lock.Dir(t.TempDir()))
		c.sync = func(device string) error {
			s.ran = append(s.ran, "flush "+device)
			return nil
		}
		err := c.Remove(t.Context(), lv)
		return strings.Join(s.ran, "\n"), err
	}
	ran, err := remove(text, told, nil)
	require.NoError(t, err)
	require.Contains(t, ran, "dmsetup message flexlvm-thinpool-tpool 0 delete 2\nlvremove ")
	require.Contains(t, ran, "flush /dev/mapper/c", "what is gone from a thin pool is gone for good")
	_, err = remove(text, told, failed)
	require.ErrorIs(t, err, failed)
	ran, err = remove(text, counted, nil)
	require.ErrorIs(t, err, failed)
	require.NotContains(t, ran, "message")
	ran, err = remove(strings.Replace(text, `create = "copy"`, `create = "data"`, 1), told, nil)
	require.ErrorIs(t, err, failed)
	require.NotContains(t, ran, "dmsetup")
}
