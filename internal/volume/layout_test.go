package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseNumbersOfLayouts(t *testing.T) {
	for _, c := range []struct {
		parse   func(field, s string) (int, error)
		good    map[string]int
		bad     []string
		problem string
	}{
		{ParseStripes, map[string]int{"2": 2, "3": 3, "128": 128}, []string{"1"}, "fewest devices"},
		{ParseStripes, nil, []string{"129"}, "is more than 128"},
		{ParseStripeKiB, map[string]int{"4": 4, "64": 64, "4096": 4096}, []string{"1", "2", "5", "100"}, "is not a power of two from 4 to 4096"},
		{ParseStripeKiB, nil, []string{"8192"}, "is more than 4096"},
		{ParseMirrors, map[string]int{"1": 1, "9": 9}, []string{"10"}, "is more than 9"},
	} {
		for text, want := range c.good {
			got, err := c.parse("field", text)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		for _, text := range c.bad {
			_, err := c.parse("field", text)
			var field *FieldError
			require.ErrorAs(t, err, &field, text)
			require.ErrorContains(t, err, c.problem)
		}
		for _, text := range []string{"", "0", "-1", "02", "2.0", "two"} {
			_, err := c.parse("field", text)
			require.Error(t, err, text)
		}
	}
}

func TestCharge(t *testing.T) {
	device := XFSDeviceSize(GiB, 0)
	for name, c := range map[string]struct {
		spec    Spec
		extent  Bytes
		want    Bytes
		devices int
	}{
		"linear":               {Spec{Layout: Linear}, DefaultExtent, device, 1},
		"no layout":            {Spec{}, DefaultExtent, device, 1},
		"linear, large extent": {Spec{Layout: Linear}, 64 * MiB, device.RoundUp(64 * MiB), 1},
		"striped":              {Spec{Layout: Striped}, DefaultExtent, device.RoundUp(8 * MiB), 2},
		"striped over 7":       {Spec{Layout: Striped, Stripes: 7}, DefaultExtent, device.RoundUp(28 * MiB), 7},
		"striped, 64 MiB":      {Spec{Layout: Striped, Stripes: 3}, 64 * MiB, device.RoundUp(192 * MiB), 3},
		"raid1":                {Spec{Layout: Raid1}, DefaultExtent, 2 * (device + DefaultExtent), 2},
		"raid1 of 3":           {Spec{Layout: Raid1, Mirrors: 2}, DefaultExtent, 3 * (device + DefaultExtent), 3},
		"raid1, 64 MiB":        {Spec{Layout: Raid1}, 64 * MiB, 2 * (device.RoundUp(64*MiB) + 64*MiB), 2},
		"raid1, 128 KiB":       {Spec{Layout: Raid1}, 128 * KiB, 2 * (device + MiB), 2},
		"extent not known":     {Spec{Layout: Raid1}, 0, 2 * (device + DefaultExtent), 2},
	} {
		c.spec.Size = GiB
		require.Equal(t, c.want, c.spec.ChargeIn(c.extent), name)
		require.Equal(t, c.devices, c.spec.Devices(), name)
		if c.extent == DefaultExtent {
			require.Equal(t, c.want, c.spec.Charge(), name)
		}
	}
}

func TestDeviceOf(t *testing.T) {
	for _, h := range []Shape{{}, {Layout: Linear}, {Layout: Striped, Stripes: 4}, {Layout: Raid1, Mirrors: 1}, {Layout: Raid1, Mirrors: 2}} {
		for size := DefaultExtent; size < 100*MiB; size += 3 * MiB {
			require.Equal(t, h.RoundUp(size, DefaultExtent), h.LargestDevice(h.Takes(size, DefaultExtent)), "%+v", h)
		}
		require.Zero(t, h.LargestDevice(0))
	}
}

func TestFits(t *testing.T) {
	const size = 1000 * MiB
	device := XFSDeviceSize(size, 0)
	half := (device / 2).RoundUp(DefaultExtent)
	leg := device + DefaultExtent
	for name, c := range map[string]struct {
		spec Spec
		free []Bytes
		fits bool
	}{
		"linear in pieces":            {Spec{}, []Bytes{half, device - half}, true},
		"linear, an extent short":     {Spec{}, []Bytes{half, device - half - DefaultExtent}, false},
		"linear, crumbs":              {Spec{}, []Bytes{device - DefaultExtent, DefaultExtent - 1, 1}, false},
		"linear, nothing":             {Spec{}, nil, false},
		"striped":                     {Spec{Layout: Striped}, []Bytes{half, half}, true},
		"striped, one device":         {Spec{Layout: Striped}, []Bytes{10 * device}, false},
		"striped, one is too full":    {Spec{Layout: Striped}, []Bytes{10 * device, half - 1}, false},
		"striped, two of three":       {Spec{Layout: Striped}, []Bytes{half, 0, half}, true},
		"striped, no borrowing":       {Spec{Layout: Striped}, []Bytes{2 * half, half / 2, half / 2}, false},
		"raid1":                       {Spec{Layout: Raid1}, []Bytes{leg, leg}, true},
		"raid1 without metadata":      {Spec{Layout: Raid1}, []Bytes{leg, device}, false},
		"raid1 of three":              {Spec{Layout: Raid1, Mirrors: 2}, []Bytes{leg, 0, leg, leg}, true},
		"raid1 of three, two devices": {Spec{Layout: Raid1, Mirrors: 2}, []Bytes{leg, 5 * leg}, false},
	} {
		c.spec.Size = size
		require.Equal(t, c.fits, Fits(c.free, c.spec, DefaultExtent), name)
	}
}

// Fits accepts the size that Largest returns, and rejects a larger one.
func TestLargest(t *testing.T) {
	free := []Bytes{20 * GiB, 7 * GiB, 3*GiB + 5*MiB, 100 * MiB}
	for name, c := range map[string]struct {
		spec   Spec
		extent Bytes
		from   Bytes // roughly
	}{
		"linear":              {Spec{}, DefaultExtent, 29 * GiB},
		"linear, few inodes":  {Spec{Inodes: 1000}, DefaultExtent, 29 * GiB},
		"linear, many inodes": {Spec{Inodes: 10 << 20}, DefaultExtent, 23 * GiB},
		"striped":             {Spec{Layout: Striped}, DefaultExtent, 13 * GiB},
		"striped over 3":      {Spec{Layout: Striped, Stripes: 3}, DefaultExtent, 8*GiB + 512*MiB},
		"raid1":               {Spec{Layout: Raid1}, DefaultExtent, 6*GiB + 512*MiB},
		"raid1 of 3":          {Spec{Layout: Raid1, Mirrors: 2}, 64 * MiB, 2*GiB + 640*MiB},
	} {
		got := Largest(free, c.spec, c.extent)
		require.Greater(t, got, c.from, name)
		require.Less(t, got, c.from+c.from/10, name)
		require.Zero(t, got%Block)
		c.spec.Size = got
		require.True(t, Fits(free, c.spec, c.extent), name)
		c.spec.Size = got + 1
		require.False(t, Fits(free, c.spec, c.extent), name)
	}
	for name, spec := range map[string]Spec{
		"more devices than there are": {Layout: Raid1, Mirrors: 4},
		"less than XFS's minimum":     {Layout: Striped, Stripes: 4, Inodes: 1 << 30},
	} {
		require.Zero(t, Largest(free, spec, DefaultExtent), name)
	}
	require.Zero(t, Largest([]Bytes{299 * MiB}, Spec{}, DefaultExtent))
	require.Equal(t, MaxSize, Largest([]Bytes{1 << 60}, Spec{}, DefaultExtent), "no more than may be asked for")
}

func TestThinCharge(t *testing.T) {
	device := XFSDeviceSize(GiB, 0)
	spec := Spec{Layout: Thin, ThinPool: "thinpool", Size: GiB}
	require.Equal(t, device, spec.Charge(), "never more than there is")
	require.Equal(t, 1, spec.Devices())
	require.True(t, Fits([]Bytes{device}, spec, DefaultExtent))
	require.False(t, Fits([]Bytes{device - DefaultExtent}, spec, DefaultExtent))
	spec.Ratio = 2000
	require.Equal(t, device/2, spec.Charge())
	require.True(t, Fits([]Bytes{(device / 2).RoundUp(DefaultExtent)}, spec, DefaultExtent))
	require.Equal(t, PoolName("g/thinpool"), Spec{Group: "g", ThinPool: "thinpool"}.Pool())

	once, twice := Largest([]Bytes{10 * GiB}, Spec{Layout: Thin}, DefaultExtent), Largest([]Bytes{10 * GiB}, spec, DefaultExtent)
	require.Greater(t, once, 9*GiB)
	require.Greater(t, twice, 2*once-GiB/4)
	require.Less(t, once, 10*GiB)
}
