package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/loop"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// A record that cannot be read does not affect the other loop devices, nor groups on real disks; only no new
// file is created, because the set of existing files is unknown.
func TestOneUnreadableLoopRecord(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // overlayfs does not support unnamed files before Linux 6.6
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
	require.ErrorContains(t, err, "correct it, or remove it")
	require.NoFileExists(t, filepath.Join(dir, "b.img"))
}

// askForLoop runs a process that creates the declared loop group at the request of a person; died reports
// whether it was killed.
func (h *fakeHost) askForLoop(die int) (out volumegroup.Outcome, died bool) {
	h.t.Helper()
	h.now = h.now.Add(time.Minute)
	died = h.live(die, func(m *groupMaker) (err error) {
		out, err = m.runRequested(context.Background(), declaredLoop(), "loop-a.img")
		return err
	})
	return out, died
}

// A group that a person has removed is created again on the same file, as often as requested, wherever the
// process dies, and whether or not the person removes what the process has left.
func TestLoopGroupIsMadeAgain(t *testing.T) {
	for _, clears := range []bool{false, true} {
		for die := 1; ; die++ {
			h := newHost(t, 0)
			_, died := h.askForLoop(0)
			require.False(t, died)
			for range 2 {
				h.clear("/dev/loop0")
				h.disk("/dev/loop0").was = false
				if _, died = h.askForLoop(die); clears {
					h.clear("/dev/loop0")
					h.disk("/dev/loop0").was = false
				}
				out, _ := h.askForLoop(0)
				require.Equal(t, volumegroup.Made, out.State, "death %d, cleared: %v: %s", die, clears, out.Message)
				require.Len(t, out.Members, 1)
			}
			if !died {
				require.Greater(t, die, 7, "there were so many changes to die at")
				break
			}
		}
	}
}

// A file that was recorded for a group of another name, and is otherwise unused, is used for the group of
// this name.
func TestLoopGroupOfAnotherNameIsMade(t *testing.T) {
	h := newHost(t, 0)
	h.once("record the disks", func() { panic(killed{}) })
	other := declaredLoop()
	other.Name, other.Group = "slow", "slow"
	_, died := h.run(0, other)
	require.True(t, died)
	out, _ := h.askForLoop(0)
	require.Equal(t, volumegroup.Made, out.State, out.Message)
}

// A person's request does not end the waits of groups that the daemon makes.
func TestLoopGroupLeavesWaits(t *testing.T) {
	h := newHost(t, 2)
	h.busy("check", "/dev/sdc", -1)
	d := declared("/dev/sd*")
	d.Name, d.Group = "slow", "slow"
	_, _ = h.run(0, d)
	l, err := h.readLedger()
	require.NoError(t, err)
	require.Contains(t, l.WaitingSince, "slow")
	out, _ := h.askForLoop(0)
	require.Equal(t, volumegroup.Made, out.State, out.Message)
	after, err := h.readLedger()
	require.NoError(t, err)
	require.Equal(t, l.WaitingSince, after.WaitingSince)
}
