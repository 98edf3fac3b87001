package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// While another call has locked a volume, calls of the node daemon's rounds and queues return soon, and
// change nothing. A person's own command waits.
func TestCallsOfTheDaemonDoNotWaitForABusyVolume(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	e.roundLockTimeout, e.sourceLockTimeout = 10*time.Millisecond, 10*time.Millisecond
	spec := cloneSpec()
	release, err := e.lockVolume(t.Context(), spec.Group, spec.Name)
	require.NoError(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ref := Ref{Group: spec.Group, Name: spec.Name, Cluster: spec.Cluster}
	require.NoError(t, e.Heal(ctx, ref), "the call that holds it heals it")
	require.ErrorIs(t, e.Release(ctx, ref, volume.Unreferenced, volume.Disposal{}), ErrBusy)
	_, err = e.SetStateOf(ctx, ref, "", volume.Ready)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, e.CreateCloneAhead(ctx, spec), ErrBusy)
	empty, snapshot := spec, spec
	empty.CloneOf = ""
	require.ErrorIs(t, e.CreateAhead(ctx, empty, nil), ErrBusy)
	snapshot.Kind = volume.Snapshot
	_, err = e.MakeSnapshot(ctx, SnapshotRequest{Spec: snapshot}, stillWanted)
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, ctx.Err())

	waits, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = e.SetState(waits, spec.Group, spec.Name, volume.Ready)
	require.ErrorIs(t, err, ErrBusy)
	require.Error(t, waits.Err(), "it has waited for as long as it was told to")
}
