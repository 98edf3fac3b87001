package pv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestQuantity(t *testing.T) {
	for b, want := range map[volume.Bytes]string{
		volume.TiB: "1Ti", 1536 * volume.MiB: "1536Mi", 976564 * volume.KiB: "976564Ki", volume.GiB + 1: "1073741825", 1: "1",
	} {
		require.Equal(t, want, quantity(b))
		parsed := resource.MustParse(want)
		require.Equal(t, int64(b), parsed.Value())
	}
}
