package staticvolume

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/discovery"
)

func TestKindOfTheNode(t *testing.T) {
	require.Equal(t, string(discovery.Device), kindDevice)
}
