package controlplane_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// Items that failed at the same time are not retried at the same time; random jitter extends each delay by half
// at most.
func TestRetriesSpread(t *testing.T) {
	const first = 500 * time.Millisecond
	limiter := controlplane.RetryLimiter()
	for failures := range 4 {
		base, tenths := first<<failures, map[time.Duration]int{}
		for i := range 200 {
			delay := limiter.When(fmt.Sprint(i))
			require.GreaterOrEqual(t, delay, base)
			require.LessOrEqual(t, delay, base+base/2)
			tenths[(delay-base)*20/base]++
		}
		require.Greater(t, len(tenths), 5, "they come together: %v", tenths)
	}
	require.Equal(t, 4, limiter.NumRequeues("0"))
	limiter.Forget("0")
	require.Less(t, limiter.When("0"), time.Second)
}
