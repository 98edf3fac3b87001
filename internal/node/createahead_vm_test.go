//go:build vm

package node

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A volume that is prepared is ready without a pod, is created once wherever a process was killed, and is the
// same as one that its first mount creates.
func TestCreateAheadKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	s := m.volume("ahead", 16*volume.MiB)
	target := m.target("a")
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "create ahead", Spec: s}, func() {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}, func(step int) {
		deaths++
		require.Equal(t, []string{"ahead"}, lvs(), "one volume after death %d", step)
		require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
		fs := tagsOf(t, s.Name).FS
		require.NoError(t, m.tryMount(s, target))
		size, used, _ := df(t, target)
		require.Equal(t, s.Size, size)
		require.Zero(t, used)
		require.Equal(t, s.Size, fill(t, target+"/data"))
		require.NoError(t, m.CreateAhead(m.ctx(), s, stillWanted), "ready already")
		require.Equal(t, fs, tagsOf(t, s.Name).FS, "it was not made anew")
		require.NoError(t, m.Unmount(m.ctx(), target))
	})
	require.Equal(t, 9, deaths, "lvcreate, mkfs; attach, set project, grow, set quota; write record, tag ready, record ready")
}

// A volume that this node has had and that is gone is never created again. In a group without room,
// CreateAhead fails immediately, and leaves nothing.
func TestCreateAheadMakesNothingAnewAndEvictsNothing(t *testing.T) {
	m := newMachine(t)
	s := m.volume("served", 16*volume.MiB)
	target := m.target("a")
	require.NoError(t, m.CreateAhead(m.ctx(), s, stillWanted))
	require.NoError(t, m.tryMount(s, target))
	require.NoError(t, os.WriteFile(target+"/data", []byte("precious"), 0o600))
	require.NoError(t, m.CreateAhead(m.ctx(), s, stillWanted), "mounted")
	require.NoError(t, m.Unmount(m.ctx(), target))
	m.clear(s.Name)
	for range 2 {
		require.ErrorIs(t, m.CreateAhead(m.ctx(), s, stillWanted), ErrLost)
		require.Empty(t, lvs())
	}

	m.roomTimeout = time.Hour
	large := m.volume("large", volume.TiB)
	require.ErrorIs(t, m.CreateAhead(m.ctx(), large, stillWanted), ErrNoSpace)
	require.Empty(t, lvs())
	exists, err := m.records.exists(large.Group, large.Name)
	require.NoError(t, err)
	require.False(t, exists, "its first mount makes it")
}

// Nothing is created for a volume that is given up, nor again for a volume that is lost.
func TestCreateAheadOfWhatNobodyWants(t *testing.T) {
	m := newMachine(t)
	s := m.volume("ahead", 16*volume.MiB)
	gone := errors.New("its PersistentVolume is gone")
	require.ErrorIs(t, m.CreateAhead(m.ctx(), s, func(context.Context) error { return gone }), gone)
	require.Empty(t, lvs())
	require.NoError(t, m.CreateAhead(m.ctx(), s, stillWanted))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.CreateAhead(m.ctx(), s, stillWanted), ErrRefused)
	m.clear(s.Name)
	require.Error(t, m.CreateAhead(m.ctx(), s, stillWanted))
	require.Empty(t, lvs())

	encrypted := m.volume("secret", 16*volume.MiB)
	encrypted.Encrypted = true
	require.ErrorIs(t, m.CreateAhead(m.ctx(), encrypted, stillWanted), ErrNoKey)
	copied := m.volume("copied", 16*volume.MiB)
	copied.CloneOf = "ahead"
	require.Error(t, m.CreateAhead(m.ctx(), copied, stillWanted))
}
