package controlplane

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A fakeLock is a lease that several processes write to.
type fakeLock struct {
	resourcelock.Interface
	record  resourcelock.LeaderElectionRecord
	deleted bool
}

func (l *fakeLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.deleted {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "flexlvm.io")
	}
	out := l.record
	return &out, nil, nil
}

func (l *fakeLock) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.record, l.deleted = record, false
	return nil
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

// A leader that was frozen finds its lease released by its successor, or deleted. It does not take the lease again,
// because it does not know what the successor promised.
func TestHeldLockThatNobodyHoldsAnyMore(t *testing.T) {
	for name, change := range map[string]func(*fakeLock){
		"released": func(l *fakeLock) { l.record.HolderIdentity = "" },
		"deleted":  func(l *fakeLock) { l.record, l.deleted = resourcelock.LeaderElectionRecord{}, true },
	} {
		t.Run(name, func(t *testing.T) {
			lease, ended := &fakeLock{deleted: true}, 0
			l := &heldLock{Interface: lease, end: func() { ended++ }, worked: make(chan struct{})}
			_, _, err := l.Get(t.Context())
			require.True(t, apierrors.IsNotFound(err))
			require.Zero(t, ended, "this process does not lead yet")
			mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
			require.NoError(t, l.Create(t.Context(), mine))

			change(lease)
			_, _, _ = l.Get(t.Context())
			require.Equal(t, 1, ended)
			require.ErrorIs(t, l.Update(t.Context(), mine), errTaken)
			require.ErrorIs(t, l.Create(t.Context(), mine), errTaken)
			require.Empty(t, lease.record.HolderIdentity)
		})
	}
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
