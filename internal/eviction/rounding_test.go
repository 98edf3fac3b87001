package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestMessageStep(t *testing.T) {
	require.EqualValues(t, 1, eviction.MessageStep(inventory.Pool{Size: volume.TiB}), "only volumes in thin pools take room with each write")
	for size, want := range map[volume.Bytes]volume.Bytes{0: 1, 10 * volume.MiB: 16 * volume.KiB, 100 * volume.GiB: 128 * volume.MiB, volume.TiB: 2 * volume.GiB} {
		require.Equal(t, want, eviction.MessageStep(inventory.Pool{Size: size, Thin: &inventory.ThinPool{}}), size)
	}
}

// Small writes to the volumes of a thin pool do not change its messages.
func TestMessagesOfThinPoolsAreRounded(t *testing.T) {
	messages := func(written volume.Bytes) (string, string) {
		s := newThinScene()
		s.thinClaim("claim", 150)
		s.thin("claim", volume.Ready, 150, func(v *inventory.Volume) { v.Allocated = 86*volume.GiB + written })
		s.PoolNamed(thinPool).Free = 14*volume.GiB - written
		s.thinClaim("new", 20)
		r := s.result(t)
		return r.PressureMessage, r.ShortfallMessage
	}
	pressure, short := messages(volume.MiB)
	require.Contains(t, pressure, "86% full (86.12 GiB of 100 GiB)")
	require.Contains(t, pressure, "has 13.87 GiB free")
	require.NotEmpty(t, short)
	againPressure, againShort := messages(100 * volume.MiB)
	require.Equal(t, pressure, againPressure)
	require.Equal(t, short, againShort)
}
