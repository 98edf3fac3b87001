package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// Listening waits for addresses that a daemon still has that is about to end. If anything else has
// them, it fails immediately.
func TestListenAfterAnotherDaemon(t *testing.T) {
	dir := lock.Dir(t.TempDir())
	works := func() (bool, error) { return dir.Held("daemon.lock", "node daemon") }
	inUse := fmt.Errorf("listen: %w", syscall.EADDRINUSE)
	tries := 0
	take := func() (serve.Addresses, error) {
		if tries++; tries < 3 {
			return serve.Addresses{}, inUse
		}
		return serve.Addresses{Metrics: "here"}, nil
	}
	_, err := listen(t.Context(), works, take)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "no daemon has them")
	require.Equal(t, 1, tries)

	release, taken, err := dir.Try("daemon.lock", "node daemon")
	require.NoError(t, err)
	require.True(t, taken)
	_, err = listen(t.Context(), nil, take)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "a dry run")
	tries = 0
	at, err := listen(t.Context(), works, take)
	require.NoError(t, err)
	require.Equal(t, "here", at.Metrics)
	require.Equal(t, 3, tries)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tries = 0
	_, err = listen(ctx, works, take)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "told to end while it waits")
	release()

	broken := func() (bool, error) { return true, errors.New("no directory") }
	tries = 0
	_, err = listen(t.Context(), broken, take)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}
