package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProbeOnceKeepsItsAnswer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "booted")
	failed := dir + ".failed"
	probes := 0
	probe := func(retry time.Duration, outcome error) error {
		return probeOnce(t.Context(), dir, retry, func(context.Context) error {
			probes++
			return outcome
		})
	}
	unprepared := errors.New("no room")
	require.ErrorIs(t, probe(time.Hour, unprepared), unprepared)
	require.NoFileExists(t, failed, "it says nothing of the backend")

	silent := fmt.Errorf("%w: it says nothing", errNoBoot)
	require.ErrorIs(t, probe(time.Hour, silent), errNoBoot)
	require.Equal(t, 2, probes)
	require.ErrorContains(t, probe(time.Hour, nil), "no guest boots: it says nothing, at ")
	require.ErrorContains(t, probe(time.Hour, nil), "remove "+failed+" to try again")
	require.Equal(t, 2, probes, "the answer was kept")

	before := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(failed, before, before))
	require.ErrorIs(t, probe(time.Hour, silent), errNoBoot)
	require.Equal(t, 3, probes, "the answer was old")
	require.NoError(t, probe(0, nil))
	require.Equal(t, 4, probes, "the backend was forced")

	require.NoFileExists(t, failed)
	require.NoError(t, probe(time.Hour, silent))
	require.Equal(t, 4, probes, "a guest has booted")
}

func TestProbeCutShortKeepsNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "booted")
	ctx, cancel := context.WithCancel(t.Context())
	err := probeOnce(ctx, dir, time.Hour, func(context.Context) error {
		cancel()
		return errNoBoot
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, dir+".failed")
	require.NoDirExists(t, dir)
}
