package volume_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestParseBps(t *testing.T) {
	const shape = `is not a rate; give bytes per second as a whole number with one of k, M, G, T, Ki, Mi, Gi, Ti or none, such as 10Mi`
	tests := map[string]struct {
		want volume.Bytes
		err  string
	}{
		"4096":                 {want: 4096},
		"1048576":              {want: volume.MiB},
		"500k":                 {want: 500_000},
		"500Ki":                {want: 500 * volume.KiB},
		"2M":                   {want: 2_000_000},
		"2Mi":                  {want: 2 * volume.MiB},
		"1G":                   {want: 1_000_000_000},
		"1Gi":                  {want: volume.GiB},
		"1Ti":                  {want: volume.TiB},
		"":                     {err: "readBps: " + shape},
		"Mi":                   {err: `readBps "Mi": ` + shape},
		"-1Mi":                 {err: `readBps "-1Mi": ` + shape},
		"+5000":                {err: `readBps "+5000": ` + shape},
		"1.5Mi":                {err: `readBps "1.5Mi": ` + shape},
		"10 Mi":                {err: `readBps "10 Mi": ` + shape},
		"10MB":                 {err: `readBps "10MB": ` + shape},
		"10K":                  {err: `readBps "10K": ` + shape},
		"10MiMi":               {err: `readBps "10MiMi": ` + shape},
		"max":                  {err: `readBps "max": ` + shape},
		"1e6":                  {err: `readBps "1e6": ` + shape},
		"99999999999999999999": {err: `readBps "99999999999999999999": ` + shape},
		"0":                    {err: `readBps "0": is less than 4096 bytes per second, which would stall all I/O; raise it, or leave it out for no limit`},
		"4095":                 {err: `readBps "4095": is less than 4096 bytes per second, which would stall all I/O; raise it, or leave it out for no limit`},
		"2Ti":                  {err: `readBps "2Ti": is more than 1 TiB a second, the most that is supported; leave it out for no limit`},
		"9223372036854775807T": {err: `readBps "9223372036854775807T": is more than 1 TiB a second, the most that is supported; leave it out for no limit`},
	}
	for text, tt := range tests {
		t.Run(text, func(t *testing.T) {
			got, err := volume.ParseBps("readBps", text)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				require.IsType(t, &volume.FieldError{}, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestParseIOPS(t *testing.T) {
	n, err := volume.ParseIOPS("readIops", "100")
	require.NoError(t, err)
	require.EqualValues(t, 100, n)
	for text, want := range map[string]string{
		"0":          `readIops "0": must be greater than 0`,
		"1k":         `readIops "1k": is not a whole decimal number greater than 0 (no sign, no unit, no fraction)`,
		"":           `readIops: is empty; give a whole decimal number greater than 0`,
		"4294967295": `readIops "4294967295": is more than 1000000000, the most that is supported`,
	} {
		_, err := volume.ParseIOPS("readIops", text)
		require.EqualError(t, err, want)
	}
}

func TestIOLimitsText(t *testing.T) {
	for text, l := range map[string]volume.IOLimits{
		"rbps=max wbps=max riops=max wiops=max":                 {},
		"rbps=1048576 wbps=max riops=max wiops=100":             {ReadBps: volume.MiB, WriteIOPS: 100},
		"rbps=4096 wbps=1099511627776 riops=1 wiops=1000000000": {ReadBps: 4096, WriteBps: volume.TiB, ReadIOPS: 1, WriteIOPS: 1e9},
		"rbps=max wbps=2097152 riops=30 wiops=max":              {WriteBps: 2 * volume.MiB, ReadIOPS: 30},
		"rbps=2000000 wbps=3000000 riops=4000000 wiops=5000000": {ReadBps: 2e6, WriteBps: 3e6, ReadIOPS: 4e6, WriteIOPS: 5e6},
	} {
		require.Equal(t, text, l.String())
		got, err := volume.ParseIOLimits("a", text)
		require.NoError(t, err)
		require.Equal(t, l, got)
		require.Equal(t, l == volume.IOLimits{}, l.IsZero())
	}
}

func FuzzParseIOLimits(f *testing.F) {
	f.Add("rbps=max wbps=2097152 riops=30 wiops=max")
	f.Add("wiops=1000000000 rbps=4096")
	f.Add("rbps=0")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := volume.ParseIOLimits("field", text)
		if err != nil {
			require.Equal(t, volume.IOLimits{}, l)
			return
		}
		again, err := volume.ParseIOLimits("field", l.String())
		require.NoError(t, err)
		require.Equal(t, l, again)
	})
}

func TestParseIOLimits(t *testing.T) {
	tests := map[string]struct {
		want volume.IOLimits
		err  string
	}{
		"":                       {},
		"wbps=5000":              {want: volume.IOLimits{WriteBps: 5000}},
		"wiops=7 rbps=5000":      {want: volume.IOLimits{ReadBps: 5000, WriteIOPS: 7}},
		"rbps=max":               {},
		"write=5":                {err: `io-limits "write=5": holds "write=5"; give words such as "rbps=max wbps=1048576 riops=max wiops=max"`},
		"rbps":                   {err: `io-limits: rbps: is empty; give a whole decimal number greater than 0`},
		"RBPS=5000":              {err: `io-limits "RBPS=5000": holds "RBPS=5000"; give words such as "rbps=max wbps=1048576 riops=max wiops=max"`},
		"rbps=5000 rbps=max":     {err: `io-limits "rbps=5000 rbps=max": holds rbps twice; leave one out`},
		"rbps=5k":                {err: `io-limits: rbps "5k": is not a whole decimal number greater than 0 (no sign, no unit, no fraction)`},
		"rbps=05000":             {err: `io-limits: rbps "05000": has leading zeros; give it as 5000`},
		"wbps=4095":              {err: `io-limits: wbps "4095": is less than 4096 bytes per second, which would stall all I/O; raise it, or give max`},
		"riops=0":                {err: `io-limits: riops "0": must be greater than 0`},
		"riops=1000000001":       {err: `io-limits: riops "1000000001": is more than 1000000000, the most that is supported`},
		"254:0 rbps=5000":        {err: `io-limits "254:0 rbps=5000": holds "254:0"; give words such as "rbps=max wbps=1048576 riops=max wiops=max"`},
		"rbps=5000,wbps=5000":    {err: `io-limits: rbps "5000,wbps=5000": is not a whole decimal number greater than 0 (no sign, no unit, no fraction)`},
		"rbps=1099511627777":     {err: `io-limits: rbps "1099511627777": is more than 1099511627776, the most that is supported`},
		"rbps=5000\nwbps=5000\n": {want: volume.IOLimits{ReadBps: 5000, WriteBps: 5000}},
	}
	for text, tt := range tests {
		t.Run(text, func(t *testing.T) {
			got, err := volume.ParseIOLimits("io-limits", text)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				require.IsType(t, &volume.FieldError{}, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}
