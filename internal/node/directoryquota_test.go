package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
)

// The advice acts on this pool, not on the default one.
func TestAdviceToEnlargeADirectoryPool(t *testing.T) {
	p := &directoryPool{device: lvm.Device{Group: "fast"}, name: "small"}
	require.Contains(t, p.shortfallMessage(4096, nil), "or enlarge the pool with `flexlvm directories create --group fast --pool small --size SIZE`")
	require.Equal(t, "not finished; call `flexlvm directories create --group fast --pool small --size SIZE` again", poolNotFinished(p.poolName()))
}
