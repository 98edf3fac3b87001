//go:build vm

package node

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// slowRate makes zeroing or copying take minutes.
const slowRate = volume.MiB / 4

// requireGivenUp gives up a volume that a call works on, which then ends.
func (m *machine) requireGivenUp(s volume.Spec, working <-chan error) {
	m.t.Helper()
	require.NoError(m.t, m.Heal(m.ctx(), refOf(s)))
	m.roundLockTimeout = time.Minute // LVM's commands are slow here
	require.NoError(m.t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(m.t, <-working, ErrRefused)
	require.NoError(m.t, m.Remove(m.ctx(), refOf(s)))
}

// While a raw block volume is being zeroed by CreateAhead, it is given up, or its first mount continues the
// zeroing.
func TestCreateAheadOfARawVolumeYields(t *testing.T) {
	m := newMachine(t)
	m.dirty()
	asked, fast := atomic.Int32{}, *m.Engine
	wanted := func(context.Context) error { asked.Add(1); return nil }
	m.zeroRate = slowRate
	begun := func(s volume.Spec) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- m.CreateAhead(t.Context(), s, wanted) }()
		require.Eventually(t, func() bool { return slices.Contains(lvs(), string(s.Name)) }, time.Minute, 100*time.Millisecond)
		return ended
	}
	s := m.rawVolume("given-up", 32*volume.MiB)
	m.requireGivenUp(s, begun(s))
	require.Empty(t, lvs())

	m.sourceLockTimeout = 100 * time.Millisecond // the mount takes longer
	s = m.rawVolume("mounted", 32*volume.MiB)
	ended, target := begun(s), m.file("a")
	require.NoError(t, fast.Mount(m.ctx(), s, MountRequest{Target: target}))
	require.NoError(t, <-ended, "it is ready")
	requireContent(t, target, s.Size, nil)
	m.unmount(target)
	m.drop(s, volume.WipeNone)

	m.dirty()
	s = m.rawVolume("whole", rawGrown)
	m.zeroRate = rawGrown / 5
	asked.Store(0)
	require.NoError(t, m.CreateAhead(m.ctx(), s, wanted))
	require.Greater(t, asked.Load(), int32(1), "it gives way, and asks again")
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
	requireContent(t, m.mountRaw(s, "b"), s.Size, nil)
}

func TestFullCopyYields(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 32*volume.MiB)
	m.unmount(m.mount(s, "a"))
	snap := m.storeOf(s, "snap", 10)
	m.snapshotNow(snap)
	c := m.copyOf(snap, "copy", shapes[0], s.Size)
	m.wipeRate = slowRate
	ended := make(chan error, 1)
	go func() { ended <- m.CreateCloneAhead(t.Context(), c) }()
	require.Eventually(t, func() bool { return slices.Contains(lvs(), string(c.Name)) }, time.Minute, 100*time.Millisecond)
	m.requireGivenUp(c, ended)
}
