package volume_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPluralize(t *testing.T) {
	require.Equal(t, "0 volumes", volume.Pluralize(0, "volume", "volumes"))
	require.Equal(t, "1 volume", volume.Pluralize(int32(1), "volume", "volumes"))
	require.Equal(t, "2 volumes", volume.Pluralize(int64(2), "volume", "volumes"))
}
