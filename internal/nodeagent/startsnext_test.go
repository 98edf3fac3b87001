package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
)

// Where something waits for pods to start, the daemon looks again when they have had their
// time, however long its interval is.
func TestNextAfterStarts(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	d, err := New(Config{Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: time.Hour, Now: func() time.Time { return now }}, nil, nil, Outlets{})
	require.NoError(t, err)
	seen := observation{view: eviction.View{Now: now, StartsUntil: now.Add(20 * time.Second)}}
	require.GreaterOrEqual(t, d.next(seen), time.Hour, "nothing waits")
	seen.result.Waits = true
	require.Equal(t, 20*time.Second, d.next(seen))
	now = now.Add(time.Minute)
	require.Equal(t, settle, d.next(seen))
}
