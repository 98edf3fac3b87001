package controlplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetries(t *testing.T) {
	r, now := NewRetries[int](time.Second, 3*time.Second), time.Unix(1000, 0)
	require.False(t, r.Wait("a", 1, now))
	for _, after := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second} {
		r.Failed("a", 1, now)
		require.True(t, r.Wait("a", 1, now.Add(after-1)))
		now = now.Add(after)
		require.False(t, r.Wait("a", 1, now))
	}
	require.False(t, r.Wait("b", 1, now))
	r.Failed("a", 1, now)
	require.False(t, r.Wait("a", 2, now), "something has changed")
	r.Failed("a", 2, now)
	require.False(t, r.Wait("a", 2, now.Add(time.Second)), "from the beginning")
	r.Prune(now.Add(4 * time.Second))
	require.NotEmpty(t, r.next)
	r.Prune(now.Add(5 * time.Second))
	require.Empty(t, r.next)
}
