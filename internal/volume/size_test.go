package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBytes(t *testing.T) {
	for text, why := range map[string]string{
		"":                     "is empty",
		"0":                    "must be greater than 0",
		"000":                  "must be greater than 0",
		"-1":                   "no sign",
		"+1":                   "no sign",
		"1.5":                  "no fraction",
		"1e9":                  "not a whole decimal number",
		"1Gi":                  "no unit",
		"1\t":                  "not a whole decimal number",
		"007":                  "leading zeros",
		"0x10":                 "not a whole decimal number",
		"٣":                    "not a whole decimal number",
		"9223372036854775807":  "is more than",
		"9223372036854775808":  "is more than",
		"99999999999999999999": "is more than",
		"549755813888001":      "is more than",
	} {
		_, err := ParseBytes("size", text)
		var field *FieldError
		require.ErrorAs(t, err, &field, text)
		require.Equal(t, "size", field.Field)
		require.Contains(t, err.Error(), why, text)
	}
	for text, want := range map[string]Bytes{"1": 1, "67108864": 64 * MiB, "549755813888000": MaxSize} {
		got, err := ParseBytes("size", text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
}

func TestBytesForPeople(t *testing.T) {
	for b, want := range map[Bytes]string{
		0: "0 B", 512: "512 B", KiB: "1 KiB", 64 * MiB: "64 MiB", GiB: "1 GiB", 1536 * MiB: "1.50 GiB", GiB + 1: "1.00 GiB", 3 * TiB: "3 TiB",
	} {
		require.Equal(t, want, b.String())
	}
}

func TestRoundUp(t *testing.T) {
	require.Equal(t, Bytes(0), Bytes(0).RoundUp(Block))
	require.Equal(t, Block, Bytes(1).RoundUp(Block))
	require.Equal(t, Block, Block.RoundUp(Block))
	require.Equal(t, 2*Block, (Block + 1).RoundUp(Block))
}

func TestDeviceSize(t *testing.T) {
	for _, size := range []Bytes{1, 64 * MiB, 300 * MiB, GiB, 10 * GiB, TiB, 100 * TiB, MaxSize} {
		d := XFSDeviceSize(size, 0)
		require.Zero(t, d%DefaultExtent, size)
		require.GreaterOrEqual(t, d, 300*MiB, "XFS is never smaller")
		require.Greater(t, d, size+LogSize(size)+32*MiB, size)
		require.Less(t, d, size+size/32+1200*MiB, "overhead of %s must stay a few per cent", size)
		require.GreaterOrEqual(t, XFSDeviceSize(size+1, 0), d, "a larger size never takes less")
		require.GreaterOrEqual(t, XFSDeviceSize(size, 1<<30), size+512*GiB, "a billion inodes need room")
	}
}

func TestLogSize(t *testing.T) {
	require.Equal(t, 64*MiB, LogSize(MiB))
	require.Equal(t, 512*MiB, LogSize(TiB))
	require.Equal(t, GiB, LogSize(MaxSize))
	require.Zero(t, LogSize(TiB+1)%Block)
}

func TestInodePercent(t *testing.T) {
	require.Zero(t, InodePercent(GiB, 0), "mkfs's default is left alone")
	require.Zero(t, InodePercent(GiB, 1000))
	pct := InodePercent(GiB, 4<<20) // 2 GiB of inodes beside 1 GiB of data
	require.Greater(t, pct, 60)
	require.LessOrEqual(t, pct, 100)
	require.LessOrEqual(t, InodePercent(1, MaxInodes), 100)
}
