package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWakeDaemonMovesWokenAt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	require.Zero(t, WokenAt(dir))
	require.NoError(t, WakeDaemon(dir))
	first := WokenAt(dir)
	require.WithinDuration(t, time.Now(), first, time.Minute)
	require.Eventually(t, func() bool {
		require.NoError(t, WakeDaemon(dir))
		return WokenAt(dir).After(first)
	}, time.Minute, time.Millisecond)
}
