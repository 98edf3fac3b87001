//go:build vm

package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unreferenced creates a volume that may be evicted.
func (m *machine) unreferenced(name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	s := m.volume(name, size)
	m.unmount(m.mount(s, name))
	require.NoError(m.t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	return s
}

// actAsDaemon acts as a running node daemon until the test ends.
func (m *machine) actAsDaemon() {
	m.t.Helper()
	release, acquired, err := m.locks.Try(daemonLock())
	require.NoError(m.t, err)
	require.True(m.t, acquired)
	m.t.Cleanup(release)
}

// A first mount and a growth on a full group wake the daemon, hold no lock while they wait, and continue as
// soon as it has evicted volumes for them.
func TestCallsWaitForRoom(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 512*volume.MiB)
	evicted := []volume.Spec{m.unreferenced("old-0", volume.GiB), m.unreferenced("old-1", volume.GiB)}
	m.fillDevices(0, 0, 0, 0)
	m.actAsDaemon()
	m.roomTimeout, m.roomRetry = time.Minute, time.Hour // only the removal of a volume wakes it
	target := m.target("a")
	for i, call := range []func() error{
		func() error { return m.tryMount(s, target) },
		func() error { return m.Expand(m.ctx(), s, 1536*volume.MiB) },
	} {
		before := WokenAt(m.stateDir)
		done := make(chan error, 1)
		go func() { done <- call() }()
		require.Eventually(t, func() bool { return !WokenAt(m.stateDir).Equal(before) }, time.Minute, time.Millisecond)
		release, err := m.lockVolume(m.ctx(), s.Group, s.Name)
		require.NoError(t, err, "no lock is held")
		release()
		select {
		case err := <-done:
			t.Fatalf("call %d did not wait: %v", i, err)
		default:
		}
		require.NoError(t, m.Remove(m.ctx(), refOf(evicted[i])))
		require.NoError(t, <-done)
	}
	require.Equal(t, 1536*volume.MiB, allocate(t, target+"/data"))
}

// If nothing frees room, the call fails in time, with the numbers.
func TestCallsDoNotWaitForEver(t *testing.T) {
	m := newMachine(t)
	s := m.volume("huge", volume.TiB)
	require.ErrorIs(t, m.tryMount(s, m.target("a")), lvm.ErrNoSpace)
	require.Zero(t, WokenAt(m.stateDir), "nobody waits by default")
	m.roomTimeout = time.Hour
	require.ErrorIs(t, m.tryMount(s, m.target("a")), lvm.ErrNoSpace, "no daemon is at work that makes room")
	require.Zero(t, WokenAt(m.stateDir))
	m.actAsDaemon()
	m.roomTimeout = time.Second
	began := time.Now()
	err := m.tryMount(s, m.target("a"))
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	require.ErrorContains(t, err, "flexlvm-test has")
	require.GreaterOrEqual(t, time.Since(began), m.roomTimeout)
	require.NotZero(t, WokenAt(m.stateDir))
	require.Empty(t, lvs())
}

// A dataset's replica may be created again under its name, so no record of it remains when it is released. A
// call for the released replica that is waiting for room must still create nothing.
func TestReplicaReleasedWhileItWaitsForRoom(t *testing.T) {
	m := newMachine(t)
	s := m.volume("ds-0123456789abcdef", 512*volume.MiB)
	s.Kind = volume.Dataset
	ref := refOf(s)
	ref.Kind = volume.Dataset
	old := m.unreferenced("old", volume.GiB)
	m.fillDevices(0, 0, 0, 0)
	m.actAsDaemon()
	m.roomTimeout, m.roomRetry = time.Minute, time.Hour
	done := make(chan error, 1)
	go func() { done <- m.tryMount(s, m.target("a")) }()
	require.Eventually(t, func() bool { return !WokenAt(m.stateDir).IsZero() }, time.Minute, time.Millisecond)
	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(old)))
	require.ErrorIs(t, <-done, ErrRefused)
	require.NotContains(t, lvs(), string(s.Name))

	reader := s
	reader.ReadOnly = true
	require.ErrorIs(t, m.Mount(m.ctx(), reader, MountRequest{Target: m.target("b"), ReadOnly: true}), ErrNoReplica)
	m.unmount(m.mount(s, "a")) // the next replica of this dataset
}
