package xfs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The inode limit that mkfs has set is raised if a copy is to have more inodes, and never lowered.
func TestGrowNeverLowersInodePercent(t *testing.T) {
	for _, tt := range []struct {
		has  uint32
		asks int
		gets uint32
	}{{25, 0, 25}, {25, 60, 60}, {60, 30, 60}, {0, 60, 0}} {
		g := fsGeometry{blockSize: 4096, maxPercent: tt.has}
		require.Equal(t, growData{blocks: 256 << 10, maxPercent: tt.gets}, g.grown(volume.GiB, tt.asks))
	}
}
