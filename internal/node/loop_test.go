package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/loop"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// A record that cannot be read keeps neither the other loop devices nor groups on real disks from
// being looked at; only no new file is made, for nobody knows then which there are.
func TestOneUnreadableLoopRecord(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // overlayfs cannot make files without a name before Linux 6.6
	dir := t.TempDir()
	e, err := New(Config{StateDir: dir, LockDir: dir}, noPrograms(t))
	require.NoError(t, err)
	path := filepath.Join(dir, "a.img")
	made, err := loop.Create(path, 64*volume.MiB)
	require.NoError(t, err)
	_, err = e.loopFile(volumegroup.Loop{File: path, Size: 64 * volume.MiB})
	require.NoError(t, err)
	broken := filepath.Join(dir, loopDir, "loop-broken"+loopSuffix)
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))

	all, err := e.loopFiles()
	require.ErrorContains(t, err, broken)
	require.Equal(t, []loop.File{made}, all)
	require.Empty(t, e.attachedLoops(), "none is attached, and that is no error")
	_, err = e.loopFile(volumegroup.Loop{File: path, Size: 64 * volume.MiB})
	require.NoError(t, err, "its own record can be read")
	_, err = e.loopFile(volumegroup.Loop{File: filepath.Join(dir, "b.img"), Size: 64 * volume.MiB})
	require.ErrorContains(t, err, "mend it, or remove it")
	require.NoFileExists(t, filepath.Join(dir, "b.img"))
}

// A group that a person has removed is made again on the same file, as often as it is asked for, wherever
// the process dies.
func TestLoopGroupIsMadeAgain(t *testing.T) {
	for die := 1; ; die++ {
		h := newHost(t, 0)
		now := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
		asked := func(die int) (volumegroup.Outcome, bool) {
			l, err := h.readLedger()
			require.NoError(t, err)
			d := declaredLoop()
			now = now.Add(time.Minute)
			d.Again = again(l, "loop-a.img", now)
			out, died := h.run(die, d)
			if died {
				return volumegroup.Outcome{}, true
			}
			return out[0], false
		}
		_, died := asked(0)
		require.False(t, died)
		for range 2 {
			h.clear("/dev/loop0")
			h.disk("/dev/loop0").was = false
			_, died = asked(die)
			out, _ := asked(0)
			require.Equal(t, volumegroup.Made, out.State, "death %d: %s", die, out.Message)
			require.Len(t, out.Members, 1)
		}
		if !died {
			require.Greater(t, die, 7, "there were so many changes to die at")
			return
		}
	}
}
