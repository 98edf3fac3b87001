package controlplane_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// What has failed at one moment is not tried again at one moment, and not later than half as
// much again.
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
