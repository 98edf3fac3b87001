package controlplane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A fakeLock is a lease that several processes write to.
type fakeLock struct {
	resourcelock.Interface
	record resourcelock.LeaderElectionRecord
}

func (l *fakeLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	out := l.record
	return &out, nil, nil
}

func (l *fakeLock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.record = record
	return nil
}

func (l *fakeLock) Identity() string { return "me" }

// The lease of a successor is neither released nor renewed, and the election ends when it is first observed.
func TestHeldLockThatAnotherProcessTakes(t *testing.T) {
	lease, ended := &fakeLock{}, 0
	worked := make(chan struct{})
	close(worked)
	l := &heldLock{Interface: lease, end: func() { ended++ }, worked: worked}
	lease.record.HolderIdentity = "before me"
	_, _, err := l.Get(t.Context())
	require.NoError(t, err)
	require.Zero(t, ended, "this process does not lead yet")
	require.NoError(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}))

	lease.record.HolderIdentity = "successor"
	record, _, err := l.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, "successor", record.HolderIdentity)
	require.Equal(t, 1, ended)
	require.ErrorIs(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{}), errTaken)
	require.Equal(t, "successor", lease.record.HolderIdentity)
	_, _, err = l.Get(t.Context())
	require.ErrorIs(t, err, errTaken)
	require.Equal(t, 1, ended)
}

// The lease is released only after the work has ended.
func TestHeldLockIsKeptDuringTheWork(t *testing.T) {
	lease, worked := &fakeLock{}, make(chan struct{})
	l := &heldLock{Interface: lease, end: func() { t.Error("the lease is not lost") }, worked: worked}
	require.NoError(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}))
	require.ErrorIs(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{}), errWorking)
	require.Equal(t, "me", lease.record.HolderIdentity)
	close(worked)
	require.NoError(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{}))
	require.Empty(t, lease.record.HolderIdentity)
}
