package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCOWStore(t *testing.T) {
	for _, c := range []struct {
		device      Bytes
		reserve     Reserve
		size, chunk Bytes
	}{
		{400 * MiB, 0, 404 * MiB, 64 * KiB},
		{400 * MiB, 30, 124 * MiB, 64 * KiB},
		{400 * MiB, 1, 8 * MiB, 64 * KiB},
		{400 * MiB, 100, 404 * MiB, 64 * KiB},
		// Chunks of 64 KiB would fill the store to the last byte, which makes the snapshot invalid.
		{63 * 256 * MiB, 0, 63*256*MiB + 8*MiB, 32 * KiB},
		{TiB, 0, TiB + 260*MiB, 64 * KiB},
	} {
		size, chunk := COWStore(c.device, 0, c.reserve)
		require.Equal(t, []Bytes{c.size, c.chunk}, []Bytes{size, chunk}, "%s, %d%%", c.device, c.reserve)
	}
}

// A full store has room for a header, all chunks, and one chunk of exceptions more than it fills, which
// the kernel clears in advance. LVM would not make it larger.
func TestACOWStoreInFullNeverOverflows(t *testing.T) {
	for _, extent := range []Bytes{DefaultExtent, 8 * MiB, 32 * MiB} {
		for device := extent; device < 40*GiB; device += extent {
			size, chunk := COWStore(device, extent, 0)
			need := cowNeed(device, chunk)
			require.GreaterOrEqual(t, size, need+chunk, "%s in extents of %s", device, extent)
			require.Equal(t, need.RoundUp(extent), size)
		}
	}
}

func TestParseReserve(t *testing.T) {
	for _, ok := range []string{"1%", "30%", "100%"} {
		r, err := ParseReserve(OptionReserve, ok)
		require.NoError(t, err)
		require.Equal(t, ok, r.String())
	}
	for _, bad := range []string{"", "%", "30", "0%", "101%", "-5%", "030%", "+5%", "3.5%", "30%%", "10Gi"} {
		_, err := ParseReserve(OptionReserve, bad)
		require.ErrorContains(t, err, "is not a percentage", bad)
	}
	require.Empty(t, Reserve(0).String())
}

// A copy-on-write snapshot is charged the size of its store.
func TestChargeOfACopyOnWriteSnapshot(t *testing.T) {
	s := Spec{Group: "flexlvm", Name: "snap-1", Size: GiB, Layout: Linear, Kind: Snapshot, CloneOf: "pvc-1"}
	require.NoError(t, s.Validate())
	source := s
	source.Kind, source.CloneOf = Claim, ""
	require.Greater(t, s.Charge(), source.Charge())
	require.LessOrEqual(t, s.Charge(), source.Charge()+2*DefaultExtent)
	full := s.Charge()
	s.Reserve = 30
	require.NoError(t, s.Validate())
	require.InDelta(t, float64(full)*0.3, float64(s.Charge()), float64(DefaultExtent))
	back, err := ParseOptions(s.Options())
	require.NoError(t, err)
	require.Equal(t, s.Reserve, back.Reserve)

	s.Kind = Claim
	require.ErrorContains(t, s.Validate(), `reserve "30%": belongs to kind snapshot`)
	s.Kind, s.Layout, s.Stripes = Snapshot, Striped, 2
	require.ErrorContains(t, s.Validate(), "does not belong to kind snapshot")
	s.Layout, s.Stripes, s.ThinPool = Thin, 0, "thinpool"
	require.ErrorContains(t, s.Validate(), "reserve")
}
