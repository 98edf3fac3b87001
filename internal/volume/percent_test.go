package volume

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPercent(t *testing.T) {
	const cluster = 400 << 50 // 400 PiB
	for _, tt := range []struct {
		part, whole Bytes
		want        int
	}{
		{0, 100, 0}, {29, 100, 29}, {1, 3, 33}, {2, 3, 66}, {99_999, 100_000, 99}, {100, 100, 100}, {3, 2, 150},
		{0, cluster, 0}, {cluster / 2, cluster, 50}, {cluster / 100 * 29, cluster, 29}, {cluster - 1<<40, cluster, 99}, {cluster, cluster, 100},
		{math.MaxInt64, math.MaxInt64, 100}, {math.MaxInt64, 1, math.MaxInt}, {math.MaxInt64, 50, math.MaxInt},
		{1, 0, 0}, {1, -1, 0}, {-1, 100, 0},
	} {
		require.Equal(t, tt.want, Percent(tt.part, tt.whole), "%d of %d", tt.part, tt.whole)
	}
}
