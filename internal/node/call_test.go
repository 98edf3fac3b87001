package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	require.Zero(t, Called(dir))
	require.NoError(t, Call(dir))
	first := Called(dir)
	require.WithinDuration(t, time.Now(), first, time.Minute)
	require.Eventually(t, func() bool {
		require.NoError(t, Call(dir))
		return Called(dir).After(first)
	}, time.Minute, time.Millisecond)
}
